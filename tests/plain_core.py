"""The plain twin of CORE: one item at a time, every option a whole prompt through the model."""

import math
import random

import torch

from nanochat.evals.core_tasks import BundleTask
from nanochat.gpt import GPT
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
    while all(count < len(row) and row[count] == rows[0][count] for row in rows):
        count += 1
    return count


@torch.no_grad()
def decide(model: GPT, tokenizer: Tokenizer, task: BundleTask, items: list[dict], index: int):
    """Return the decision on an item, with the mean losses in nats per token."""
    bos = tokenizer.special_tokens["<|bos|>"]
    rows = [[bos, *tokenizer.encode(text)] for text in prompts(task, items, index)]
    if task.kind == "language_modeling":
        assert rows[1][: len(rows[0])] == rows[0]
        starts, rows = [len(rows[0])], rows[1:]
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
