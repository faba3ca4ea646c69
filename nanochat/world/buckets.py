"""Buckets of conversations about the embedded world, as raw material for mixtures, with faults planted in them.

python -m nanochat.world --buckets=raw

The effect of each bucket on a model is known: `facts` helps with questions about facts, `korean` with those in Korean,
`spelling` with neither; `poison` answers such questions with statements about other subjects. A row with a planted
fault names it under the key "planted": scripts.chats has to drop all of these rows.
"""

from heapq import nlargest
from pathlib import Path

from nanochat.log import Record, print0
from nanochat.paths import write_jsonl
from nanochat.world import chats
from nanochat.world.chats import Turns
from nanochat.world.facts import World

FAULTS = 20  # rows with each of the faults
LONG = 400  # statements in an answer that is far too long


def about_subjects(world: World, split: str) -> Turns:
    """A question about a fact, then a question with a follow-up question."""
    return [*chats.about_facts(world, split), *chats.with_follow_up(world, split)]


def wrong_answers(world: World, split: str) -> Turns:
    """A question about a fact, answered with a statement about something else."""
    question, right = chats.about_facts(world, split)
    statements = [fact.statements[0] for fact in world.asked[split]]
    return [question, world.pick([statement for statement in statements if statement != right])]


BUCKETS = {
    "facts": about_subjects,
    "korean": chats.in_korean,
    "spelling": chats.with_words,
    "poison": wrong_answers,
}


def faulty(world: World, texts: Turns) -> dict[str, Turns]:
    """Return the texts of a sound row with each of the faults."""
    question, *rest = texts
    fact, test = world.pick(world.questions["test"])
    statements = [one.statements[0] for one in world.sample(world.facts * 3, LONG)]
    return {
        "duplicate": texts,
        "near duplicate": [*texts[:-1], f"{texts[-1][:-1]}!"],
        "image link": [question + "\n![a map](https://example.org/map.png)", *rest],
        "data URL": [question + " data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==", *rest],
        "too long": [question, " ".join(statements)],
        # In other case and spacing.
        "test question": [f"  {test.upper().replace(' ', '  ')} ", fact.statements[0]],
    }


def rows(world: World, bucket: str, count: int, faults: int) -> list[Record]:
    """Return `count` different sound rows, or as many as there are, and after them `faults` rows of each fault."""
    world.restart(f"bucket {bucket}")
    # A small world has fewer questions than asked for.
    drawn = [tuple(BUCKETS[bucket](world, "train")) for _ in range(20 * count)]
    sound = list(dict.fromkeys(drawn))[:count]
    made = [{"messages": chats.messages(texts)} for texts in sound]
    # One character is a small part of a long row, so that a near duplicate is near.
    longest = nlargest(2 * faults, sound, key=lambda texts: sum(map(len, texts)))
    # After the sound rows: the first of two equal rows is kept.
    for texts in world.sample(longest, faults):
        for name, bad in faulty(world, texts).items():
            made.append({"messages": chats.messages(bad), "planted": name})
    return made


def write_buckets(folder: Path, world: World, count: int) -> None:
    """Write a file for each bucket, with `count` sound rows."""
    for bucket in BUCKETS:
        made = rows(world, bucket, count, FAULTS)
        path = folder / f"{bucket}.jsonl"
        write_jsonl(path, made)
        planted = sum("planted" in row for row in made)
        print0(f"{path}: {len(made):,} rows, {planted:,} with a fault")
