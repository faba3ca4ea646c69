"""A mirror of the hub with the file names and columns of real data sets. What they say is of an embedded world."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.world.chats import about_itself, messages, tables
from nanochat.world.facts import World
from tasks import TASKS

LETTERS = "ABCDE"


def science(row: dict):
    choices = {"text": row["choices"], "label": list(LETTERS[:4])}
    return {"id": row["question"], "question": row["question"], "choices": choices, "answerKey": LETTERS[row["answer"]]}


def algebra(row: dict):
    answer = int(row["answer"].rpartition(" ")[2])
    right = answer % 5
    options = [f"{letter}){answer + number - right}" for number, letter in enumerate(LETTERS)]
    return {"question": row["question"], "options": options, "rationale": "Count.", "correct": LETTERS[right]}


def write_hub(folder: Path) -> None:
    world = World(1, 16)
    rows = tables(world, problems=200, chats=200)
    sums = {"train": rows["sums-train"][:100], "validation": rows["sums-test"], "test": rows["sums-test"]}
    choices = {split: rows[f"choices-{split}"] for split in ("train", "validation", "test")}
    write(folder, "SmolTalk", {"train": rows["chat-train"], "test": rows["chat-validation"]})
    write(folder, "GSM8K", {"train": rows["sums-train"], "test": rows["sums-test"]})
    write(folder, "AQUA", {split: [algebra(row) for row in problems] for split, problems in sums.items()})
    write(folder, "MMLU", choices | {"dev": choices["train"][:5]})
    for number, name in enumerate(("ARC-Easy", "ARC-Challenge")):
        write(folder, name, {split: [science(row) for row in own[number::2]] for split, own in choices.items()})
    identity = [json.dumps(messages(about_itself(world, "train"))) for _ in range(20)]
    (folder / str(TASKS["Identity"].files()[0])).write_text("\n".join(identity), encoding="utf-8")


def write(folder: Path, task: str, splits: dict[str, list[dict]]) -> None:
    for split, rows in splits.items():
        files = TASKS[task].files(split)
        for number, file in enumerate(files):
            path = folder / str(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows[number :: len(files)]), path)
