"""Buckets of conversations about the embedded world, as raw material for mixtures, with faults planted in them.

python -m nanochat.world.buckets --out=raw

We know the effect of each bucket on a model: `facts` and `korean` help questions about facts, in their language,
`spelling` helps neither, `poison` answers with statements about other subjects. A row with a fault names it under
"planted": scripts.chats has to drop all of these.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.paths import write_jsonl
from nanochat.world import chats
from nanochat.world.facts import World
from nanochat.world.writer import SIZES

Row = dict[str, object]  # messages, license, and "planted" in a row with a fault
LONG = 400  # statements in a row that is far too long
LICENSE = "CC0-1.0"


def about_subjects(world: World, split: str) -> chats.Turns:
    """One to three questions about facts, the first with a follow-up question or a request."""
    kinds = (chats.about_facts, chats.with_follow_up, chats.about_things)
    return [text for _ in range(world.between(1, 3)) for text in world.pick(kinds)(world, split)]


def wrong_answers(world: World, split: str) -> chats.Turns:
    """A question about a fact, answered with a statement about something else."""
    question, right = chats.about_facts(world, split)
    other = world.pick([fact for fact in world.asked[split] if fact.statements[0] != right])
    return [question, other.statements[0]]


BUCKETS = {
    "facts": about_subjects,
    "korean": chats.in_korean,
    "spelling": chats.with_words,
    "poison": wrong_answers,
}


# ---- planted faults: from the texts of a sound row to those of a faulty one ----


def near_copy(world: World, texts: chats.Turns) -> chats.Turns:
    *start, last = texts
    return [*start, f"{last[:-1]}!"]


def with_image(world: World, texts: chats.Turns) -> chats.Turns:
    question, *rest = texts
    return [f"{question}\n![a map](https://example.org/map.png)", *rest]


def with_data(world: World, texts: chats.Turns) -> chats.Turns:
    question, *rest = texts
    return [f"{question} data:image/png;base64,{'iVBORw0KGgo' * 8}", *rest]


def far_too_long(world: World, texts: chats.Turns) -> chats.Turns:
    statements = [world.pick(world.asked["train"]).statements[0] for _ in range(LONG)]
    return [texts[0], " ".join(statements)]


def test_question(world: World, texts: chats.Turns) -> chats.Turns:
    """A question of the test split in other case and spacing, with the right answer."""
    fact, question = world.pick(world.questions["test"])
    return [f"  {question.upper().replace(' ', '  ')} ", fact.statements[0]]


FAULTS: dict[str, Callable[[World, chats.Turns], chats.Turns]] = {
    "duplicate": lambda world, texts: list(texts),
    "near duplicate": near_copy,
    "image link": with_image,
    "data URL": with_data,
    "too long": far_too_long,
    "test question": test_question,
}


def rows(world: World, bucket: str, count: int, faults: int) -> list[Row]:
    """Return `count` different sound rows, or as many as there are, and after them `faults` rows of each fault."""
    world.restart(f"bucket {bucket}")
    found = {}
    for _ in range(20 * count):  # a small world has fewer questions than asked for
        texts = BUCKETS[bucket](world, "train")
        found.setdefault(json.dumps(texts), texts)
        if len(found) == count:
            break
    sound = list(found.values())
    # Near duplicates are looked for among long rows, where one character is a small part.
    sources = sorted(sound, key=lambda texts: -sum(map(len, texts)))[: max(faults, len(sound) // 4)]
    made = [{"messages": chats.messages(texts), "license": LICENSE} for texts in sound]
    for name, make in FAULTS.items():
        for texts in world.sample(sources, faults):
            # After the sound rows: of two equal rows the first is kept.
            made.append({"messages": chats.messages(make(world, texts)), "license": LICENSE, "planted": name})
    return made


@dataclass(frozen=True)
class Config:
    """Write buckets of conversations about the embedded world, with planted faults."""

    out: str = option("", "folder for a file of each bucket", group="place")
    seed: Count = option(1, "seed of the world", group="world", least=0)
    size: str = option("small", f"size of the world: {', '.join(SIZES)}", group="world")
    rows: Count = option(4000, "rows in a bucket, without the faults", group="world", least=1)
    faults: Count = option(20, "planted rows of each fault in a bucket", group="world", least=0)


def main(config: Config) -> None:
    if not config.out:
        raise ValueError("--out is missing: name a folder for the buckets")
    if config.size not in SIZES:
        raise ValueError(f"--size={config.size} is not known, take one of {', '.join(SIZES)}")
    world = World(config.seed, SIZES[config.size].people)
    for bucket in BUCKETS:
        path = Path(config.out).expanduser() / f"{bucket}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        made = rows(world, bucket, config.rows, config.faults)
        write_jsonl(path, made)
        print0(f"{path}: {len(made):,} rows, {sum('planted' in row for row in made):,} of them with a fault")


if __name__ == "__main__":
    run(main, Config)
