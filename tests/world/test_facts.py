"""The world's dice, names and facts: equally hard for all seeds, well-formed, and no value a good guess."""

import re
from collections import Counter
from itertools import islice

import pytest

from nanochat.world.facts import World, different_names, korean_text


@pytest.fixture(scope="module")
def worlds():
    return [World(seed, people=64) for seed in (0, 1, 2)]


def test_worlds_differ_and_are_equally_hard_and_no_value_is_a_good_guess(worlds) -> None:
    shapes = []
    for world in worlds:
        facts = Counter((fact.subject.kind, fact.relation, fact.split) for fact in world.facts)
        shapes.append((facts, {kind: len(things) for kind, things in world.things.items()}))
    assert shapes[0] == shapes[1] == shapes[2]
    people = [{person.name for person in world.things["person"]} for world in worlds]
    assert len(people[0] & people[1]) < 5
    counts: dict = {}
    for fact in worlds[0].facts:
        relation = (fact.subject.kind, fact.relation)
        counts.setdefault(relation, Counter())[fact.value] += 1
    assert all(max(values.values()) - min(values.values()) <= 1 for values in counts.values())


def test_sentences_are_well_formed(worlds) -> None:
    for fact in worlds[0].facts + worlds[1].facts:
        for text in [*fact.statements, *fact.pronoun_statements, *fact.questions]:
            assert re.fullmatch(r"[A-Z][A-Za-z0-9' ]+[.?]", text), text
            assert not re.search(r"\b[aA] [aeiouAEIOU]|  ", text), text
        assert all(fact.subject.phrase.lower() in text.lower() for text in fact.statements + fact.questions)
        assert all(fact.value.name.lower() in text.lower() for text in fact.statements + fact.pronoun_statements)
        assert not any(fact.value.name in question for question in fact.questions)
        assert not re.search(r"[/{}]", fact.korean_statement + fact.korean_question)


def test_choices_do_not_show_the_right_one(worlds) -> None:
    """Neither by kind nor position, nor by how often a value is among the choices: not even for values of a test."""
    world = worlds[1]
    positions, shown, right = Counter(), Counter(), Counter()
    for fact in world.facts * 4 + world.asked["train"] * 40:
        choices, position = world.choices(fact)
        assert choices[position] is fact.value
        assert len({choice.name for choice in choices}) == 4
        assert {choice.kind for choice in choices} == {fact.value.kind}
        positions[position] += 1
        if fact.split == "train":
            shown.update(choice.name for choice in choices)
            right[fact.value.name] += 1
    assert all(0.22 < count / positions.total() < 0.28 for count in positions.values())
    assert all(0.15 < right[name] / count < 0.4 for name, count in shown.items())


def test_names_and_particles() -> None:
    assert korean_text("카라은/는 민은/는 물이/가 다리이/가") == "카라는 민은 물이 다리가"
    assert korean_text("꿀을/를 치즈을/를 탑으로/로 우물으로/로 다리으로/로") == "꿀을 치즈를 탑으로 우물로 다리로"
    world = World(1, people=16)
    world.restart("names")
    names = dict(islice(different_names(world, re.compile("nig|e$")), 200))
    assert len({latin[:3] for latin in names}) == 200
    assert not any(latin.endswith("e") for latin in names)
    assert names["sohel"] == "소헬"
    assert names["gejen"] == "게젠"
