"""Plant faults in the buckets of `nanochat.world --buckets`, to see that scripts.chats drops them all.

python -m nanochat.world --seed=1 --rows=4000 --buckets=raw
python -m bench.planted --seed=1 --rows=4000 --buckets=raw

The second command writes the same buckets again, and after their rows some with faults. These name their fault under
the key "planted", which stays in a row that scripts.chats keeps: runs/data.sh ends with an error if it finds one.
"""

from heapq import nlargest
from pathlib import Path

from nanochat.config import Count, option, options, run
from nanochat.paths import read_json, world_dir, write_jsonl
from nanochat.world.chats import BUCKETS, Turns, bucket_rows, messages
from nanochat.world.facts import World
from nanochat.world.writer import SIZES

FAULTS = 20  # rows with each of the faults
LONG = 400  # statements in an answer that is far too long


@options("planted")
class Config:
    """Write buckets with planted faults."""

    seed: Count = option(1, "seed of the world")
    rows: Count = option(4000, "rows in a bucket, without those with faults", least=FAULTS)
    buckets: str = option("raw", "folder for the buckets")


def faulty(world: World, texts: Turns):
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


def with_faults(world: World, bucket: str, count: int):
    """Return the rows of a bucket, and after them those with faults: the first of two equal rows is kept."""
    made = bucket_rows(world, bucket, count)
    sound = [[message["content"] for message in row["messages"]] for row in made]
    # One character is a small part of a long row, so that a near duplicate is near.
    longest = nlargest(2 * FAULTS, sound, key=lambda texts: sum(map(len, texts)))
    for texts in world.sample(longest, FAULTS):
        made += [{"messages": messages(bad), "planted": fault} for fault, bad in faulty(world, texts).items()]
    return made


def main(config: Config):
    world = World(config.seed, SIZES[read_json(world_dir(config.seed) / "world.json")["size"]].people)
    for bucket in BUCKETS:
        write_jsonl(Path(config.buckets, f"{bucket}.jsonl"), with_faults(world, bucket, config.rows))


if __name__ == "__main__":
    run(main, Config)
