"""The CORE metric: how well a base model does the tasks of an eval_bundle, above chance, averaged.

The options of an item are branches of one row whose trunk, the prompt they share, is computed once. A task's rows go
longest first, in batches of a budget of tokens, through the model; logits are made where tokens are scored, and the
host waits for the device once a task. An option's score is the mean over its tokens: of their losses, the lowest is the
model's choice; of a completion, of whether they were not the likeliest, and all have to be. In fp32 the decisions are
those of one prompt at a time; in half precision near ties fall either way, as rounding depends on a batch's shape.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanochat.cross_entropy import CHUNK_BYTES, cross_entropy
from nanochat.evals.core_tasks import COMPLETION, Prepared, Prompts, prepare
from nanochat.log import Progress, print0
from nanochat.paths import write_text

# Tokens of a batch, by device type. On a CPU larger ones fall out of its caches, and are slower.
BUDGET = {"cpu": 1024, "cuda": 65_536, "mps": 16_384}
SCORING = 1  # to be raised with every change to decisions: those of before are then made anew
ESTIMATE = 500  # items of a task that an estimate while training takes


@dataclass(frozen=True)
class Result:
    """Of one task. centered: 0 for guesses, 1 for all right; stderr: of that, taking the items as drawn from many."""

    label: str
    accuracy: float
    items: int
    baseline: float

    @property
    def centered(self) -> float:
        return (self.accuracy - self.baseline) / (1 - self.baseline)

    @property
    def stderr(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / max(self.items - 1, 1)) / (1 - self.baseline)


def core_metric(results: Sequence[Result]) -> tuple[float, float]:
    """The mean of what is there, and its standard error."""
    count = len(results)
    return sum(r.centered for r in results) / count, math.sqrt(sum(r.stderr**2 for r in results)) / count


def identity(prepared: Sequence[Prepared], *facts: Any) -> str:
    """A hash of the bundle, the tokenizer and whatever else the decisions depend on."""
    return hashlib.sha256(json.dumps([SCORING, [one.key for one in prepared], facts]).encode()).hexdigest()


def evaluate(
    model: Any, prepared: Sequence[Prepared], runtime: Any, budget: int = 0, folder: Path | None = None
) -> list[Result]:
    """The result of each task; all ranks call it and get the same.

    budget: tokens of a batch, 0: by device. folder: takes `LABEL.jsonl` with the decision on each item; what lies there
    is not done again, so it has to be of this model and these tasks.
    """
    results: list[Result] = []
    done, total = 0, sum(one.tokens for one in prepared)
    progress = Progress("CORE", "tokens")
    with _eager(model, runtime.device):
        for one in prepared:
            task, path = one.task, folder and folder / f"{one.task.label}.jsonl"
            prompts = one.load()
            found = runtime.from_first(partial(_finished, path, len(prompts.gold))) if path else None
            if found is None:
                beyond = _beyond(prompts, model.config.max_seq_len)
                if beyond:
                    why = "their answers do not fit into the model's context: they count as wrong"
                    print0(f"core: {task.label}, {len(beyond):,} of {len(prompts.gold):,} items: {why}")
                rows = _share(_rows(prompts, model.config.max_seq_len, beyond), runtime.rank, runtime.world_size)
                score = _misses if task.kind == COMPLETION else _losses
                told = partial(_tell, progress, done, total, runtime.world_size)
                sums = _sums(model, rows, score, len(prompts.scored), budget or BUDGET[runtime.device.type], told)
                if runtime.world_size > 1:
                    sums = runtime.all_sum(sums.to(runtime.device)).cpu()
                decisions = _decide(prompts, sums, task.kind, beyond)
                found = [decision["correct"] for decision in decisions]
                if path and runtime.rank == 0:
                    write_text(path, "".join(json.dumps(decision) + "\n" for decision in decisions))
                done += one.tokens
            else:
                total -= one.tokens  # the rate is that of what is left
            results.append(Result(task.label, sum(found) / len(found), len(found), task.baseline))
            print0(_line(results[-1], task.shots))
    progress.update(total, total)
    progress.close()
    return results


def estimate(model: Any, tokenizer: Any, runtime: Any, budget: int, log: Any, most: int = ESTIMATE) -> Callable:
    """A hook of the training loop: the metric over `most` items a task goes to the log and into the state's notes."""
    prepared = prepare(tokenizer, most)

    def measure(state: Any) -> None:
        results = evaluate(model, prepared, runtime, budget)
        value, stderr = core_metric(results)
        state.notes |= {"CORE metric": value, "CORE metric stderr": stderr}
        print0(f"step {state.step:05d} | CORE metric: {value:.4f} ± {stderr:.4f}")
        each = {f"core/{result.label}": result.centered for result in results}
        log.write("core", state.step, core_metric=value, core_metric_stderr=stderr, **each)

    return measure


def _tell(progress: Progress, before: int, total: int, ranks: int, tokens: int) -> None:
    progress.update(before + ranks * tokens, total)  # the ranks have as much to do as each other


def _line(result: Result, shots: int) -> str:
    about = f"core: {result.label}, {shots}-shot, {result.items:,} items"
    return f"{about}: accuracy {result.accuracy:.4f}, centered {result.centered:.4f} ± {result.stderr:.4f}"


def _finished(path: Path, items: int) -> list[bool] | None:
    """Which items a run before this one found right, if it came to the task's end."""
    try:
        found = [json.loads(line)["correct"] for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return found if len(found) == items else None


@contextmanager
def _eager(model: Any, device: torch.device) -> Iterator[None]:
    """A model as trained may be compiled, and have attention without branches: each batch here has another shape."""
    before, model.attention = model.attention, "chunks" if device.type == "cpu" else "sdpa"
    try:
        with torch.no_grad(), model.as_written():
            yield
    finally:
        model.attention = before


# ---- from prompts to rows ----


class Row(NamedTuple):
    """Tokens of a trunk and its branches; starts: where the branch of each begins, in the trunk 0 (see GPT.hidden).

    asks (N, 3): where in the row a token is predicted, which one it should be, number of the option it is of.
    """

    ids: np.ndarray
    starts: np.ndarray
    trunk: int
    asks: np.ndarray


def _beyond(prompts: Prompts, longest: int) -> set[int]:
    """Items with an option of which so many tokens are scored that the context has none before them."""
    items = np.repeat(np.arange(len(prompts.options)), prompts.options)
    return set(items[prompts.scored >= longest].tolist())


def _rows(prompts: Prompts, longest: int, beyond: set[int]) -> list[Row]:
    rows, number = [], 0
    for item, (trunk, options, scored) in enumerate(prompts):
        asked = [(number + k, *pair) for k, pair in enumerate(zip(options, scored, strict=True)) if pair[1]]
        number += len(options)
        if item in beyond:
            continue
        if len(trunk) + max(map(len, options)) <= longest:
            rows += [_row(trunk, asked)] if asked else []
            continue
        # Cut from the left, options of different lengths lose different tokens: they have no trunk in common.
        for place, option, count in asked:
            whole = np.concatenate([trunk, option])[-longest:]
            rows.append(_row(whole[:-count], [(place, whole[-count:], count)]))
    return rows


def _row(trunk: np.ndarray, options: list[tuple[int, np.ndarray, int]]) -> Row:
    """options: number, tokens, how many at the end are scored. Equal ones share a branch, so that a tie stays one."""
    parts, places, asks, end = [trunk], {}, [], len(trunk)
    for number, option, count in options:
        branch = option[:-1]  # nothing is read where the last token stands
        if branch.tobytes() not in places:
            places[branch.tobytes()] = end
            parts.append(branch)
            end += len(branch)
        inside = np.arange(len(option) - count, len(option))
        at = np.where(inside > 0, places[branch.tobytes()] + inside - 1, len(trunk) - 1)
        asks.append(np.stack([at, option[inside], np.full(count, number)], axis=1))
    lengths = [len(part) for part in parts]
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    if np.count_nonzero(lengths) == 2:  # a trunk and what follows it is plain text
        starts[:] = 0
    return Row(np.concatenate(parts), starts, len(trunk), np.concatenate(asks))


def _share(rows: list[Row], rank: int, ranks: int) -> list[Row]:
    """One rank's, longest first: each goes to whom fewest tokens have been given."""
    loads, own = [0] * ranks, []
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        least = loads.index(min(loads))
        loads[least] += len(row.ids)
        own += [row] * (least == rank)
    return own


# ---- from rows to scores ----


def _losses(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    options = {"softcap": model.config.softcap, "vocab_size": model.config.vocab_size}
    return cross_entropy(hidden, model.head_weight, targets, reduction="none", **options)


def _misses(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    size = max(1, CHUNK_BYTES[hidden.device.type] // (4 * model.config.padded_vocab))
    pairs = zip(hidden.split(size), targets.split(size), strict=True)
    return torch.cat([(model.logits(some).argmax(-1) != right).float() for some, right in pairs])


def _sums(
    model: Any, rows: list[Row], score: Callable, options: int, budget: int, told: Callable[[int], None]
) -> Tensor:
    """Of each option's scored tokens, (options,) in fp64 on the host; 0 for those in no row."""
    device, values, numbers, first, done = model.rope_cos.device, [], [], 0, 0
    while first < len(rows):
        width = len(rows[first].ids)
        batch = rows[first : first + max(1, budget // width)]
        ids, starts = np.zeros((2, len(batch), width), np.int64)
        for i, row in enumerate(batch):
            ids[i, : len(row.ids)], starts[i, : len(row.ids)] = row.ids, row.starts
        asks = np.concatenate([row.asks + np.array([i * width, 0, 0]) for i, row in enumerate(batch)])
        given = {"starts": starts, "trunks": np.array([[row.trunk] for row in batch])} if starts.any() else {}
        given = {name: _moved(array, device) for name, array in given.items()}
        hidden = model.hidden(_moved(ids, device), **given).flatten(0, 1)
        places, targets = _moved(asks[:, :2].T, device)
        values.append(score(model, hidden[places], targets))
        numbers.append(asks[:, 2])
        first += len(batch)
        done += sum(len(row.ids) for row in batch)
        told(done)
    if not rows:  # fewer of them than ranks
        return torch.zeros(options, dtype=torch.float64)
    each = torch.cat(values).cpu().double()  # the one wait for the device
    return torch.zeros(options, dtype=torch.float64).index_add_(0, torch.from_numpy(np.concatenate(numbers)), each)


def _moved(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _decide(prompts: Prompts, sums: Tensor, kind: str, beyond: set[int]) -> list[dict[str, Any]]:
    """What the model chose of each item, with the means of its options; an option without tokens has none."""
    pairs = zip(sums.tolist(), prompts.scored.tolist(), strict=True)
    means = (total / count if count else math.nan for total, count in pairs)
    decisions = []
    items = zip(prompts.options.tolist(), prompts.gold.tolist(), prompts.questions.tolist(), strict=True)
    for item, (count, gold, question) in enumerate(items):
        own = [next(means) for _ in range(count)]
        shown = [None if math.isnan(mean) else mean for mean in own]
        about = {"item": item, "question": question}
        if item in beyond:
            decisions.append({**about, "correct": False, "too_long": True})
            continue
        if kind == COMPLETION:
            decisions.append({**about, "correct": own[0] == 0, "missed": shown[0]})
            continue
        # The first of equals; as in the reference, one without tokens is chosen where it stands first, and only there.
        chosen = own.index(min(own))
        decisions.append({**about, "correct": chosen == gold, "chosen": chosen, "gold": gold, "losses": shown})
    return decisions
