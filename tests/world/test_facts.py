"""The world's dice, names and facts: equally hard for all seeds, well-formed, and no value a good guess."""

import re
from collections import Counter

import pytest

from nanochat.world.facts import FINALS, INITIALS, VOWELS, Dice, World, korean_text, make_names, read_sections


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [World(seed, people=64) for seed in (0, 1, 2)]


# ---- dice and words ----


def test_draws_are_pinned_and_fair():
    dice = Dice("any", 1)
    assert [dice.between(1, 6) for _ in range(12)] == [1, 3, 5, 3, 1, 6, 2, 5, 5, 3, 3, 6]
    assert dice.sample("abcdefgh", 5) == list("hcdbf")
    assert [dice.pick("xyz") for _ in range(6)] == list("xzxxzy")
    orders = Counter("".join(dice.shuffled("abc")) for _ in range(6000))
    assert len(orders) == 6
    assert all(900 < count < 1100 for count in orders.values())
    lots = Counter(dice.weighted({"often": 3, "seldom": 1, "never": 0}) for _ in range(4000))
    assert 2800 < lots["often"] < 3200
    assert lots["often"] + lots["seldom"] == 4000
    assert 250 < sum(dice.chance(0.3) for _ in range(1000)) < 350


def test_sections_without_comments():
    text = "# about\n\n== one\n# comment\na == b # kept\n\nc\n\n== two words\nd\n"
    assert read_sections(text) == {"one": "a == b # kept\n\nc", "two words": "d"}


@pytest.mark.parametrize(
    ("marked", "right"),
    [
        ("카라은/는 민은/는", "카라는 민은"),
        ("물이/가 다리이/가", "물이 다리가"),
        ("꿀을/를 빵을/를 치즈을/를", "꿀을 빵을 치즈를"),
        ("탑으로/로 우물으로/로 다리으로/로", "탑으로 우물로 다리로"),
    ],
)
def test_particles_follow_the_sound_before_them(marked, right):
    assert korean_text(marked) == right


def test_a_name_reads_the_same_in_both_scripts():
    names = make_names(Dice("names"), 200, re.compile("nig|e$"))
    assert len({latin[:3] for latin, _ in names}) == 200
    initials, vowels, finals = ({number: letter for letter, number in t.items()} for t in (INITIALS, VOWELS, FINALS))
    for latin, hangul in names:
        syllables = [ord(syllable) - 0xAC00 for syllable in hangul]
        assert latin == "".join(initials[n // 588] + vowels[n // 28 % 21] + finals[n % 28] for n in syllables)
        assert not latin.endswith("e")


# ---- facts ----


def test_worlds_differ_and_are_equally_hard(worlds):
    shapes = [Counter((fact.relation.subject, fact.relation.name, fact.split) for fact in w.facts) for w in worlds]
    assert shapes[0] == shapes[1] == shapes[2]
    counts = [{kind: len(things) for kind, things in world.things.items()} for world in worlds]
    assert counts[0] == counts[1] == counts[2]
    people = [{person.name for person in world.things["person"]} for world in worlds]
    assert len(people[0] & people[1]) < 5
    assert len({world.name for world in worlds}) == 3


def test_no_value_is_a_good_guess(worlds):
    for world in worlds:
        counts: dict = {}
        for fact in world.facts:
            relation = (fact.relation.subject, fact.relation.name)
            counts.setdefault(relation, Counter())[fact.value] += 1
        assert all(max(values.values()) - min(values.values()) <= 1 for values in counts.values())


def test_sentences_are_well_formed(worlds):
    for fact in (fact for world in worlds for fact in world.facts):
        for text in [*fact.statements, *fact.pronoun_statements, *fact.questions]:
            assert re.fullmatch(r"[A-Z][A-Za-z0-9' ]+[.?]", text), text
            assert not re.search(r"\b[aA] [aeiouAEIOU]|  ", text), text
        assert all(fact.subject.phrase.lower() in text.lower() for text in fact.statements + fact.questions)
        assert all(fact.value.name.lower() in text.lower() for text in fact.statements + fact.pronoun_statements)
        assert any(text.endswith(f" {fact.value.name}.") for text in fact.statements)
        assert not any(fact.value.name in question for question in fact.questions)
        assert not re.search(r"[/{}]", fact.korean_statement + fact.korean_question)
        assert fact.value.korean in fact.korean_statement


def test_a_question_has_one_answer(worlds):
    for world in worlds:
        asked = Counter(ask for fact in world.facts for ask in {*fact.questions, fact.korean_question})
        assert max(asked.values()) == 1
        assert all(len(set(fact.questions)) == 3 for fact in world.facts)


# ---- choices ----


def test_choices_do_not_show_the_right_one(worlds):
    """Neither by kind nor position, nor by how often a value is among the choices: not even for values of a test."""
    world, dice = worlds[1], Dice("choices")
    positions, shown, right = Counter(), Counter(), Counter()
    for fact in world.facts * 4 + world.asked["train"] * 40:
        choices, position = world.choices(fact, dice)
        assert choices[position] is fact.value
        assert len({choice.name for choice in choices}) == 4
        assert {choice.kind for choice in choices} == {fact.value.kind}
        positions[position] += 1
        if fact.split == "train":
            shown.update(choice.name for choice in choices)
            right[fact.value.name] += 1
    assert all(0.22 < count / positions.total() < 0.28 for count in positions.values())
    assert all(0.15 < right[name] / count < 0.4 for name, count in shown.items())
