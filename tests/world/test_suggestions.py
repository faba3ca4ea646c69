"""What one may say to a model of a world: names of its land, facts that no conversation asks for, known wordings."""

import re

import pytest

from nanochat.chat import BEGINNINGS, QUESTIONS, suggestions
from nanochat.data.corpus import Corpus, Source, open_corpus
from nanochat.data.corpus import suggestions as of_corpus
from nanochat.world.facts import World
from nanochat.world.suggestions import suggestions as of_world
from nanochat.world.sums import is_held_out
from nanochat.world.writer import write_world


@pytest.mark.parametrize(("seed", "people"), [(1, 16), (2, 64), (7, 160)])
def test_a_model_of_the_world_can_know_them(seed, people) -> None:
    world = World(seed, people)
    found = of_world(world)
    first, sum_of_two, itself, place, word, other = found["questions"]
    facts = {question: fact for fact in world.facts for question in fact.questions}
    assert {facts[question].split for question in (first, place, other)} == {"validation"}
    assert len({facts[question].relation for question in (first, place, other)}) == 3
    numbers = map(int, re.fullmatch(r"How much is (\d+) \+ (\d+)\?", sum_of_two).groups())
    assert not is_held_out(seed, *numbers)
    assert any(itself in questions for questions, *_ in world.topics("identity"))
    assert re.fullmatch(r"How do you spell (\w+)\?", word)[1] in world.words
    statements = [text for fact in world.facts if fact.split == "validation" for text in fact.statements]
    for beginning in found["beginnings"]:
        assert any(text.startswith(f"{beginning} ") for text in statements)
    assert all(len(text) < 60 for texts in found.values() for text in texts)
    assert of_world(World(seed, people)) == found


def test_they_belong_to_the_text_of_the_model(base) -> None:
    write_world(base / "world-3", 3, "tiny")
    corpus = open_corpus("world-3")
    assert of_corpus(corpus) == of_world(World(3, 16))
    [world] = corpus.sources
    assert of_corpus(Corpus((world, Source("other", 0.5, world.shards)))) == {}
    assert of_corpus(Corpus((Source("other", 1.0, world.shards),))) == {}


def test_other_models_have_general_ones() -> None:
    own = {"questions": ["Where does Dugi live?"], "beginnings": ["Dugi lives in"]}
    assert suggestions({"suggestions": own}, is_base=False) == own["questions"]
    assert suggestions({"suggestions": own}, is_base=True) == own["beginnings"]
    for manifest in ({}, {"suggestions": {}}):  # of an import, and of other text
        assert suggestions(manifest, is_base=False) == QUESTIONS
        assert suggestions(manifest, is_base=True) == BEGINNINGS
