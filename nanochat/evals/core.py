"""The CORE metric: the centered accuracies of a base model on an eval_bundle's tasks, averaged.

Each task is evaluated in four steps. Plan: an item becomes one row of tokens: a prefix, computed once, and a branch for
each option. Pack: rows, the longest first, fill batches with a fixed token count. Score: the model predicts each
option's scored tokens; the host waits for the device once per task. Decide: the option with the lowest mean loss is
chosen; a completion is right if all tokens were the likeliest.

In fp32 the decisions are the same as for one prompt at a time. In half precision near ties may change, because rounding
depends on the shapes of batches.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.data.hub import HubError
from nanochat.decoder import Prefix
from nanochat.evals.core_tasks import COMPLETION, BundleTask, Item, open_core, tokenize_items
from nanochat.gpt import GPT
from nanochat.log import print0
from nanochat.metrics import keep_figures
from nanochat.models import as_written
from nanochat.paths import write_jsonl
from nanochat.run import Trainer
from nanochat.runtime import Runtime, in_halves
from nanochat.statistics import Estimate, average, mean_estimate
from nanochat.tokenizer import Tokenizer
from nanochat.train import Evaluation, State

# Tokens per batch without padding, by device type. On a CPU larger batches do not fit into the caches, and are slower.
# On a GPU the keys and values of prefixes take 150 kB per token at depth 24, so 5 GB.
BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768, "mps": 16_384}


def evaluate_core(
    model: GPT,
    tokenizer: Tokenizer,
    tasks: Sequence[BundleTask],
    runtime: Runtime,
    max_per_task: int = 0,
    folder: Path | None = None,
) -> dict[str, Estimate]:
    """Return each task's centered accuracy, by label. All ranks call this and get the same scores.

    max_per_task: items, 0 for all. folder: for the files LABEL.jsonl with the decision on each item.
    """
    scores = {}
    for task in tasks:
        with torch.no_grad(), as_written(model):  # batches differ in shape
            decisions = _evaluate_task(model, tokenizer, task, runtime, max_per_task)
        if folder and runtime.rank == 0:
            write_jsonl(folder / f"{task.label}.jsonl", decisions)
        accuracy = mean_estimate([decision["correct"] for decision in decisions])
        centered = accuracy.centered(task.baseline)
        scores[task.label] = centered
        print0(
            f"core: {task.label}, {task.shots}-shot, {len(decisions)} items: accuracy {accuracy.value:.4f}, "
            f"centered {centered}"
        )
    return scores


def core_scores(trainer: Trainer, every: int, max_per_task: int) -> list[Evaluation]:
    """Return the evaluation that scores CORE during training; none for every=-1. max_per_task: items, -1 for all.

    Without the tasks' files there is none either, and a line says so: they are on a server of their own, and the run
    can do without this estimate.
    """
    if every < 0:
        return []
    name, tasks, obstacle = "", [], ""
    try:
        name, tasks = open_core(trainer.tokenizer_tag)
    except HubError as error:
        obstacle = str(error)
    # Each rank reads files of its own machine, and all score or none does.
    obstacle = next(filter(None, trainer.runtime.all_gather(obstacle)), "")
    if obstacle:
        print0(f"core: no estimate during training, {obstacle}")
        return []
    figure = name.lower().replace(" ", "_")  # in the metric log

    def score(state: State) -> None:
        scores = evaluate_core(trainer.model, trainer.tokenizer, tasks, trainer.runtime, max(max_per_task, 0))
        each = {f"core/{label}": score.value for label, score in scores.items()}
        keep_figures(trainer.log, state, "core", {figure: average(scores.values())}, **each)

    return [Evaluation(every, score)]


def _evaluate_task(
    model: GPT, tokenizer: Tokenizer, task: BundleTask, runtime: Runtime, max_per_task: int
) -> list[dict[str, Any]]:
    """Return the decisions on a task's items, in order; each rank takes every n-th item."""
    texts = task.items(max_per_task)
    # The items are shuffled, so that ranks get similar lengths.
    items = tokenize_items(task, texts, range(runtime.rank, len(texts), runtime.world_size), tokenizer)
    scored = np.array([tokens for item in items for tokens in item.scored])
    # One score per token: 0 for the likeliest one, else 1; or its loss.
    score = partial(_misses, model) if task.kind == COMPLETION else partial(model.loss, reduction="none")
    sums = _option_sums(model, _plan(items, model.config.max_seq_len), score, len(scored))
    means = iter((sums / torch.from_numpy(scored)).tolist())  # 0 / 0 is nan: an option without scored tokens
    decisions = []
    for item in items:
        own = [next(means) for _ in item.options]
        shown = [None if math.isnan(mean) else mean for mean in own]  # JSON has no NaN
        decision: dict[str, Any] = {"item": item.number, "question": item.question}
        if max(item.scored) >= model.config.max_seq_len:
            decision |= {"correct": False, "too_long": True}
        elif task.kind == COMPLETION:
            decision |= {"correct": own[0] == 0, "missed": shown[0]}
        else:
            # Ties go to the first option. As in the public nanochat, nan is chosen only where it comes first.
            chosen = own.index(min(own))
            decision |= {"correct": chosen == item.gold, "chosen": chosen, "gold": item.gold, "losses": shown}
        decisions.append(decision)
    return sorted(chain(*runtime.all_gather(decisions)), key=lambda decision: decision["item"])


# ---- plan: from prompts to rows ----


@dataclass(frozen=True)
class Target:
    """An option's scored tokens in a row."""

    number: int  # the option's
    start: int  # position in the branch whose output predicts the first scored token: the token before that
    ids: np.ndarray


Scored = tuple[Tensor, list[Target]]  # one score per token, and the targets whose tokens these are
Score = Callable[[Tensor, Tensor], Tensor]  # hidden states (tokens, channels), ids (tokens,) → (tokens,)
Text = TypeVar("Text")


@dataclass(frozen=True)
class Branch:
    """Tokens after a prefix, the first of them the last one that all branches share; equal options share a branch."""

    ids: np.ndarray
    targets: list[Target]


@dataclass(frozen=True)
class Row:
    """Tokens of one item: a prefix, and branches that each continue the prefix."""

    prefix: np.ndarray  # (tokens,); may be empty
    branches: list[Branch]


def _plan(items: Sequence[Item], context: int) -> list[Row]:
    """Return rows for all items that fit."""
    rows = []
    numbers = count()  # of options in the task
    for item in items:
        # The numbers stand last: they do not end.
        options = [option for option in zip(item.options, item.scored, numbers, strict=False) if option[1]]
        # The scored tokens of an option must not fill the whole context.
        if not options or max(item.scored) >= context:
            continue
        if len(item.prefix) + max(len(ids) for ids in item.options) <= context:
            rows.append(_row(item.prefix, options))
            continue
        # Prompts are cut from the left, so that options with different lengths have different prefixes.
        for ids, scored, number in options:
            text = np.concatenate([item.prefix, ids])[-context:]
            rows.append(_row(text[:-scored], [(text[-scored:], scored, number)]))
    return rows


def _row(prefix: np.ndarray, options: list[tuple[np.ndarray, int, int]]) -> Row:
    """Return a row. An option: tokens after the prefix, how many at the end are scored, its number in the task."""
    branches: dict[bytes, Branch] = {}  # by the bytes of their ids
    for ids, scored, number in options:
        inputs = np.concatenate([prefix[-1:], ids[:-1]])  # the output after the last token is not used
        # Equal options share a branch, so that their losses are a tie.
        branch = branches.setdefault(inputs.tobytes(), Branch(inputs, []))
        # The last shared token predicts token 0 of an option; without one, token 0 predicts token 1.
        branch.targets.append(Target(number, len(inputs) - scored, ids[len(ids) - scored :]))
    return Row(prefix[:-1], list(branches.values()))


# ---- pack and score: from rows to a score for each option ----


def _batches(texts: Iterable[Text], length: Callable[[Text], int], tokens: int) -> Iterator[list[Text]]:
    """Yield batches with about so many tokens, the longest texts first: fewer, or up to a text more."""
    batch: list[Text] = []
    end = number = 0
    for text in sorted(texts, key=length, reverse=True):  # texts of about the same length need little padding
        end += length(text)
        if batch and end // tokens != number:
            yield batch
            batch = []
        number = end // tokens
        batch.append(text)
    if batch:
        yield batch


def _option_sums(model: GPT, rows: list[Row], score: Score, options: int) -> Tensor:
    """Return each option's summed token scores, (options,) in fp64 on the host; 0 for options in no row.

    score: gives one number a token, (tokens,), from hidden states (tokens, channels) and ids (tokens,).
    """
    sums = torch.zeros(options, dtype=torch.float64)
    scores = []
    numbers = []
    tokens = BATCH_TOKENS[model.device.type]
    for batch in _batches(rows, lambda row: len(row.prefix) + len(row.branches[0].ids), tokens):
        for each, targets in chain(*in_halves(lambda part: list(_score_rows(model, part, score)), batch)):
            scores.append(each)
            numbers += [np.full(len(target.ids), target.number) for target in targets]
    if not scores:  # a rank may have no rows
        return sums
    on_host = torch.cat(scores).cpu().double()  # the only wait for the device
    return sums.index_add_(0, torch.from_numpy(np.concatenate(numbers)), on_host)


def _score_rows(model: GPT, batch: list[Row], score: Score) -> Iterator[Scored]:
    """Yield the scores of scored tokens, (tokens,), with their targets in the same order.

    The first branch of each row runs together with the prefix, the others continue the prefix.
    """
    texts = [np.concatenate([row.prefix, row.branches[0].ids]) for row in batch]
    lengths = [len(row.prefix) for row in batch]
    prefix = Prefix(model, _padded(texts, model.device), torch.tensor(lengths))
    yield _scored(score, prefix.hidden, lengths, [row.branches[0] for row in batch])
    others = [(number, branch) for number, row in enumerate(batch) for branch in row.branches[1:]]
    # Counted fourfold: each of these rows has a prefix beside its branch.
    for some in _batches(others, lambda other: 4 * len(other[1].ids), BATCH_TOKENS[model.device.type]):
        numbers, branches = zip(*some, strict=True)
        texts = [branch.ids for branch in branches]
        cache = prefix.rows(torch.tensor(numbers), torch.tensor([len(text) for text in texts]))
        hidden = model.hidden(_padded(texts, model.device), cache=cache)
        yield _scored(score, hidden, [0 for _ in branches], branches)


def _scored(score: Score, hidden: Tensor, offsets: list[int], branches: Sequence[Branch]) -> Scored:
    """Score the targets by hidden states (rows, width, channels); a row's branch begins at its offset."""
    positions = []
    targets = []
    for states, offset, branch in zip(hidden, offsets, branches, strict=True):
        for target in branch.targets:
            start = offset + target.start
            positions.append(states[start : start + len(target.ids)])
        targets += branch.targets
    texts = np.concatenate([target.ids for target in targets], dtype=np.int64)
    # The head sees scored positions alone.
    return score(torch.cat(positions), _to_device(torch.from_numpy(texts), hidden.device)), targets


def _padded(texts: Sequence[np.ndarray], device: torch.device) -> Tensor:
    # Token 0 pads; no target points there.
    rows = pad_sequence([torch.from_numpy(text) for text in texts], batch_first=True)
    return _to_device(rows.long(), device)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        # Pinned memory lets the copy overlap with the GPU's work.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _misses(model: GPT, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return 0 for each token that was the likeliest, else 1."""
    # Logits take much memory: they are made in chunks.
    rows = max(1, CHUNK_BYTES[hidden.device.type] // (4 * model.config.padded_vocab))
    chunks = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([(model.logits(states).argmax(-1) != ids).float() for states, ids in chunks])
