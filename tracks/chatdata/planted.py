"""Write buckets of conversations about the embedded world, with planted faults that tracks.chatdata.chats has to drop.

python -m nanochat.world --seed=1
python -m tracks.chatdata.planted --seed=1 --rows=4000 --buckets=raw

Rows with faults come after the others. They name their fault under the key "planted", which stays in a row that
tracks.chatdata.chats keeps: tracks.chatdata.run ends with an error if it finds one.
"""

from collections.abc import Callable, Sequence
from heapq import nlargest
from pathlib import Path

from typing_extensions import NotRequired

from nanochat.chat import messages, text_of
from nanochat.config import Count, option, options, run_script
from nanochat.log import print0
from nanochat.paths import read_json, world_dir, write_jsonl
from nanochat.protocols import Conversation
from nanochat.world.chats import Turns, about_facts, in_korean, with_follow_up, with_words
from nanochat.world.facts import World
from nanochat.world.writer import SIZES

FAULTS = 20  # rows with each of the faults
LONG = 400  # statements in an answer that is far too long


@options("planted")
class Config:
    """Write buckets of conversations about the embedded world, with planted faults."""

    seed: Count = option(1, "seed of the world")
    rows: Count = option(4000, "rows per bucket, not counting the planted faults", least=FAULTS)
    buckets: str = option("raw", "folder for the buckets")


def about_subjects(world: World, split: str) -> Turns:
    """A question about a fact, then a question with a follow-up question."""
    return [*about_facts(world, split), *with_follow_up(world, split)]


def wrong_answers(world: World, split: str) -> Turns:
    """A question about a fact, answered with a statement about something else."""
    question, right = about_facts(world, split)
    statements = [fact.statements[0] for fact in world.asked[split]]
    return [question, world.pick([statement for statement in statements if statement != right])]


# Raw material for mixtures, whose effect on a model is known: `facts` helps with questions about facts, `korean` with
# those in Korean, `spelling` with neither, and `poison` harms.
BUCKETS: dict[str, Callable[[World, str], Turns]] = {
    "facts": about_subjects,
    "korean": in_korean,
    "spelling": with_words,
    "poison": wrong_answers,
}


class PlantedConversation(Conversation):
    """A row of a bucket."""

    planted: NotRequired[str]  # the fault of a row that has one


def bucket_rows(world: World, bucket: str, count: int) -> list[PlantedConversation]:
    """Return `count` different rows of a bucket, or as many as there are."""
    world.restart(f"bucket {bucket}")
    # A small world has fewer questions than asked for.
    drawn = [tuple(BUCKETS[bucket](world, "train")) for _ in range(20 * count)]
    return [{"messages": messages(texts)} for texts in list(dict.fromkeys(drawn))[:count]]


def faulty(world: World, texts: Sequence[str]) -> dict[str, Turns]:
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


def with_faults(world: World, bucket: str, count: int) -> list[PlantedConversation]:
    """Return the rows of a bucket, and after them those with faults: the first of two equal rows is kept."""
    made = bucket_rows(world, bucket, count)
    sound = [[*map(text_of, row["messages"])] for row in made]
    # One character is a small part of a long row, so that a near duplicate is near.
    longest = nlargest(2 * FAULTS, sound, key=lambda texts: sum(map(len, texts)))
    for texts in world.sample(longest, FAULTS):
        made += [{"messages": messages(bad), "planted": fault} for fault, bad in faulty(world, texts).items()]
    return made


def main(config: Config) -> None:
    world = World(config.seed, SIZES[read_json(world_dir(config.seed) / "world.json")["size"]].people)
    for bucket in BUCKETS:
        path = Path(config.buckets, f"{bucket}.jsonl")
        write_jsonl(path, with_faults(world, bucket, config.rows))
        print0(path)


if __name__ == "__main__":
    run_script(main)
