"""Buckets of conversations about the embedded world, as raw material for mixtures.

python -m nanochat.world --buckets=raw

The effect of each bucket on a model is known: `facts` helps with questions about facts, `korean` with those in Korean,
`spelling` with neither; `poison` answers such questions with statements about other subjects.
"""

from pathlib import Path

from nanochat.log import Record, print0
from nanochat.paths import write_jsonl
from nanochat.world import chats
from nanochat.world.chats import Turns
from nanochat.world.facts import World


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


def rows(world: World, bucket: str, count: int) -> list[Record]:
    """Return `count` different rows of a bucket, or as many as there are."""
    world.restart(f"bucket {bucket}")
    # A small world has fewer questions than asked for.
    drawn = [tuple(BUCKETS[bucket](world, "train")) for _ in range(20 * count)]
    return [{"messages": chats.messages(texts)} for texts in list(dict.fromkeys(drawn))[:count]]


def write_buckets(folder: Path, world: World, count: int) -> None:
    """Write a file for each bucket, with `count` rows."""
    for bucket in BUCKETS:
        made = rows(world, bucket, count)
        path = folder / f"{bucket}.jsonl"
        write_jsonl(path, made)
        print0(f"{path}: {len(made):,} rows")
