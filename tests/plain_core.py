"""The plain twin of CORE: one item at a time, every option a whole prompt through the model."""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from models import model_for

from nanochat.evals.core import evaluate_core
from nanochat.evals.core_tasks import BundleTask, read_bundle, tokenize_items
from nanochat.gpt import GPT
from nanochat.paths import read_jsonl
from nanochat.tokenizer import Tokenizer


def prompts(task: BundleTask, items: list[dict], index: int):
    others = [other for other in range(len(items)) if other != index]
    shown = [items[other] for other in random.Random(1234 + index).sample(others, task.shots)]
    item, between, head = items[index], task.delimiter, ""
    if task.kind == "multiple_choice":
        for shot in shown:
            head += shot["query"] + between + shot["choices"][shot["gold"]] + "\n\n"
        return [head + item["query"] + between + choice for choice in item["choices"]]
    if task.kind == "schema":
        for shot in shown:
            head += shot["context_options"][shot["gold"]] + between + shot["continuation"] + "\n\n"
        return [head + context + between + item["continuation"] for context in item["context_options"]]
    for shot in shown:
        head += shot["context"].strip() + between + shot["continuation"] + "\n\n"
    without = head + item["context"].strip() + between
    return [without.strip(), without + item["continuation"]]


def alike(rows: list[list[int]]):
    """Return how many tokens all rows begin with."""
    count = 0
    while count < len(rows[0]) and all(count < len(row) and row[count] == rows[0][count] for row in rows):
        count += 1
    return count


@torch.no_grad()
def decide(model: GPT, tokenizer: Tokenizer, task: BundleTask, items: list[dict], index: int):
    """Return the decision on an item, with the mean losses in nats per token."""
    rows = [tokenizer.begin(text) for text in prompts(task, items, index)]
    if task.kind == "language_modeling":
        # A public vocabulary may join the end of a context with its continuation.
        assert rows[1][: len(rows[0])] == rows[0] or "<|bos|>" not in tokenizer.special_tokens
        starts, rows = [alike(rows)], rows[1:]
    elif task.kind == "schema":
        suffix = alike([row[::-1] for row in rows])
        starts = [len(row) - suffix for row in rows]
    else:
        starts = [alike(rows)] * len(rows)
    losses = []
    for row, start in zip(rows, starts, strict=True):
        cut = max(0, len(row) - model.config.max_seq_len)
        ids, start = torch.tensor(row[cut:]), start - cut
        logits = model(ids[None])[0]
        if task.kind == "language_modeling":
            missed = (logits[start - 1 : -1].argmax(-1) != ids[start:]).double()
            return {"correct": not missed.any(), "missed": float(missed.mean())}
        each = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")[max(start - 1, 0) :]
        losses.append(float(each.double().sum()) / len(each) if len(each) else math.nan)
    chosen = losses.index(min(losses))
    return {"correct": chosen == items[index]["gold"], "chosen": chosen, "losses": losses}


def decisions(folder: Path, task):
    return list(read_jsonl(folder / f"{task.label}.jsonl", dict))


def all_items(task, tokenizer):
    items = task.items(0)
    return tokenize_items(task, items, range(len(items)), tokenizer)


def assert_plain(model, tokenizer, tasks, folder: Path):
    """Every decision in a folder is that of one prompt at a time; returns the verdicts."""
    correct = []
    for task in tasks:
        items = task.items(0)
        found = decisions(folder, task)
        assert [decision["item"] for decision in found] == list(range(len(items)))
        for ours, item in zip(found, all_items(task, tokenizer), strict=True):
            where = task.label, item.number
            correct.append(ours["correct"])
            if max(item.scored) >= model.config.max_seq_len:
                assert (ours["correct"], ours["too_long"]) == (False, True), where
                continue
            plain = decide(model, tokenizer, task, items, item.number)
            assert ours["correct"] == plain["correct"], where
            if task.kind == bundles.COMPLETION:
                assert ours["missed"] == pytest.approx(plain["missed"])
                continue
            assert (ours["chosen"], ours["gold"]) == (plain["chosen"], item.gold), where
            losses = [math.nan if loss is None else loss for loss in ours["losses"]]
            assert losses == pytest.approx(plain["losses"], rel=1e-4, nan_ok=True)
    return correct


def check_decisions(config: str | Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model with this config decides like the plain twin."""
    bundles.write_bundle(folder / "mirror", [*bundles.world_tasks(9), *bundles.HARD])
    monkeypatch.setenv("NANOCHAT_HUB", str(folder / "mirror"))
    few = [task for task in read_bundle() if task.label.startswith("hard") or task.label == "world_schema"]
    tokenizer = bundles.vocabulary()
    model = model_for(tokenizer, config, max_seq_len=144)
    evaluate_core(model, tokenizer, few, bundles.one_process(), folder=folder)
    assert_plain(model, tokenizer, few, folder)
