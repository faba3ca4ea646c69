"""Thirty things that a person types (bench/thirty.py): no text for training has them, and rules do what they say."""

import inspect
import json
import re
from collections.abc import Iterator

import pytest
from chat_files import contents

from bench.thirty import THIRTY, Saying, plain_sums, thirty
from nanochat.world import chats
from nanochat.world.facts import World
from nanochat.world.sums import is_held_out
from nanochat.world.texts import document
from nanochat.world.writer import SIZES
from tasks import spelling

SEEDS = (1, 2, 3)
SMALL = SIZES["small"]  # the world of the main job


def plain(text: str) -> str:
    """The words of a text alone, in lower case."""
    return " ".join(re.findall(r"[\w+*/-]+", text.lower().replace("'", "")))


def lines_to_learn(world: World) -> Iterator[str]:
    """Every line of every text that any stage learns from."""
    for name, rows in chats.tables(world, SMALL.problems, SMALL.chats).items():
        if name.endswith("-test"):
            continue
        for row in rows:
            texts = contents(row) if "messages" in row else [row["question"], str(row.get("answer"))]
            for text in texts:
                yield from [text, *text.splitlines()]
    world.restart("documents")
    for _ in range(SMALL.documents):
        for line in document(world).splitlines():
            yield line
            # "Kara: Good morning, Miro!", "Question: Where does Kara live?"
            yield line.partition(": ")[2]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_text_for_training_has_one_of_them(seed) -> None:
    """As a message or a line: not in upper case, and not with other punctuation."""
    world = World(seed, SMALL.people)
    wanted = {plain(one.say) for one in thirty(world)}
    assert len(wanted) == 30
    lines = {plain(line) for line in lines_to_learn(world)}
    assert len(lines) > 100_000
    assert not wanted & lines
    # Tasks of spelling write their questions when they are read: "Spell the word: flute", "Count the letter f in …"
    assert "Spell the word: " in inspect.getsource(spelling)
    openings = ["spell the word", *(plain(question.partition("{")[0]) for question in spelling.QUESTIONS)]
    assert not [say for say in wanted for opening in filter(None, openings) if say.startswith(opening)]
    facts = [one.say for one in thirty(world) if one.value]
    assert len(facts) == 3
    whole = "\n".join(lines)
    assert not [say for say in facts if plain(say) in whole]


def test_they_are_the_same_for_every_world_but_for_its_names() -> None:
    rows = [json.loads(line) for line in THIRTY.read_text(encoding="utf-8").splitlines()]
    worlds = [World(seed, people=16) for seed in SEEDS]
    for world in worlds:
        found = thirty(world)
        assert found == thirty(world)
        for row, one in zip(rows, found, strict=True):
            if "fact" in row:
                # The right value, of a fact that no conversation for training asks for.
                kind, relation = row["fact"].split()
                [fact] = [
                    fact
                    for fact in world.asked["test"]
                    if (fact.subject.kind, fact.relation) == (kind, relation)
                    and one.say == row["say"].format(s=fact.subject.name)
                ]
                assert one.value == fact.value.name
            elif "{" not in row["say"]:
                assert one.say == row["say"]
        [stranger] = {one.say for one in found} & {f"who is {fact.subject.name}?" for fact in world.unknown["test"]}
        assert stranger


@pytest.mark.parametrize(
    ("saying", "sensible", "not_sensible"),
    [
        (
            Saying("bye", pattern="bye|see you"),
            ["Goodbye!", "Bye bye. Come back soon."],
            ["e!", "goodbye!", "Goodbye", "Hello!", "Goodbye!\n#### 42", "Goodbye!<|user_end|>"],
        ),
        (
            Saying("12 plus 30", number=42),
            ["42", "12 + 30 = <|python_start|>12+30<|python_end|><|output_start|>42<|output_end|>42."],
            ["12 + 30 = 42.\n#### 42", "142", "12 + 30 = 4230.", "42 + 12 = 54.", "I do not know that."],
        ),
        (
            Saying("where is Kara from?", value="Badaton"),
            ["Kara lives in Badaton.", "Badaton."],
            ["Kara lives in Riroton.", "Badaton", "I do not know Badaton.", "Kara lives in Badatons."],
        ),
    ],
)
def test_rules(saying, sensible, not_sensible) -> None:
    assert [text for text in sensible if not saying.is_sensible(text)] == []
    assert [text for text in not_sensible if saying.is_sensible(text)] == []


def test_plain_sums_are_right_and_of_held_out_numbers() -> None:
    world = World(1, people=16)
    asked = plain_sums(world, 60)
    assert len({one.say for one in asked}) == 60
    for one in asked:
        x, y = map(int, re.findall(r"\d+", one.say))
        assert one.number in (x + y, abs(x - y))
        assert is_held_out(1, x, y)
