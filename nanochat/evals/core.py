"""The CORE metric: the centered accuracies of a base model on an eval_bundle's tasks, averaged.

Each task is evaluated in four steps. Plan: an item becomes one row of tokens: a prefix, computed once, and a branch for
each option. Pack: rows, the longest first, fill batches with a fixed token count. Score: the model predicts each
option's scored tokens; the host waits for the device once per task. Decide: the option with the lowest mean loss is
chosen; a completion is right if all tokens were the likeliest.

In fp32 the decisions are the same as for one prompt at a time. In half precision near ties may change, because rounding
depends on the shapes of batches.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanochat.cross_entropy import CHUNK_BYTES, cross_entropy
from nanochat.decoder import Prefix
from nanochat.evals.core_tasks import COMPLETION, Prepared, Prompts, prepare
from nanochat.gpt import GPT
from nanochat.log import Progress, print0
from nanochat.outcome import Estimate, average, mean_estimate
from nanochat.paths import write_text
from nanochat.runtime import Runtime
from nanochat.train import Evaluation, State

if TYPE_CHECKING:
    from nanochat.run import Trainer

# Tokens per batch, by device type. On a CPU larger batches do not fit into the caches, and are slower.
BATCH_TOKENS = {"cpu": 1024, "cuda": 65_536, "mps": 16_384}
VERSION = 1  # raise this with every change to decisions, so that decisions on disk are not used again


@dataclass(frozen=True)
class Result:
    """The result of one task."""

    label: str
    items: int
    baseline: float  # accuracy when guessing
    accuracy: Estimate

    @property
    def centered(self) -> Estimate:
        return self.accuracy.centered(self.baseline)


def core_metric(results: Sequence[Result]) -> Estimate:
    """Return the mean centered accuracy."""
    return average([result.centered for result in results])


def identity(prepared: Sequence[Prepared], *facts: str) -> str:
    """Return a hash for everything that determines the decisions: bundle, tokenizer, and other facts."""
    keys = [one.key for one in prepared]
    return hashlib.sha256(json.dumps([VERSION, keys, facts]).encode()).hexdigest()


def evaluate_core(
    model: GPT,
    prepared: Sequence[Prepared],
    runtime: Runtime,
    batch_tokens: int = 0,
    folder: Path | None = None,
) -> list[Result]:
    """Return one result per task. All ranks call this and get the same results.

    batch_tokens: 0 for the device's default. folder: for the files LABEL.jsonl with the decision on each item.
    Tasks with a complete file are not evaluated again, so the folder has to belong to this model and these tasks.
    """
    batch_tokens = batch_tokens or BATCH_TOKENS[runtime.device.type]
    total = sum(one.tokens for one in prepared)
    done = 0
    results = []
    progress = Progress("CORE", "tokens")
    with _inference(model, runtime.device):
        for one in prepared:
            path = folder / f"{one.task.label}.jsonl" if folder else None
            correct = runtime.broadcast(partial(_read_decisions, path)) if path else None
            if correct is None:
                report = partial(_report_progress, progress, done, total, runtime.world_size)
                decisions = _evaluate_task(model, one, runtime, batch_tokens, report)
                correct = [decision["correct"] for decision in decisions]
                if path and runtime.rank == 0:
                    # Only complete tasks are stored, so a restarted evaluation can trust the file.
                    write_text(path, "".join(json.dumps(decision) + "\n" for decision in decisions))
                done += one.tokens
            else:
                total -= one.tokens  # the progress counts only the remaining tasks
            result = Result(one.task.label, len(correct), one.task.baseline, mean_estimate(correct))
            results.append(result)
            print0(
                f"core: {result.label}, {one.task.shots}-shot, {result.items:,} items: "
                f"accuracy {result.accuracy.value:.4f}, "
                f"centered {result.centered.value:.4f} ± {result.centered.stderr:.4f}"
            )
    progress.update(total, total)
    progress.close()
    return results


def core_scores(trainer: "Trainer", every: int, max_per_task: int) -> list[Evaluation]:
    """Return the evaluation that scores CORE during training; none for every=-1."""
    if every < 0:
        return []
    prepared = prepare(trainer.tokenizer, max_per_task)
    # On a GPU a batch may take as much memory as in training.
    on_cpu = trainer.runtime.device.type == "cpu"
    batch_tokens = 0 if on_cpu else trainer.device_rows * trainer.config.max_seq_len

    def score(state: State) -> None:
        results = evaluate_core(trainer.model, prepared, trainer.runtime, batch_tokens)
        value, stderr = core_metric(results)
        state.notes["CORE metric"] = value
        state.notes["CORE metric stderr"] = stderr
        print0(f"step {state.step:05d} | CORE metric: {value:.4f} ± {stderr:.4f}")
        each = {f"core/{result.label}": result.centered.value for result in results}
        trainer.log.write("core", state.step, core_metric=value, core_metric_stderr=stderr, **each)

    return [Evaluation(every, score)]


def _report_progress(progress: Progress, before: int, total: int, ranks: int, tokens: int) -> None:
    progress.update(before + ranks * tokens, total)  # all ranks have about equally many tokens


def _read_decisions(path: Path) -> list[bool] | None:
    """Return the verdicts that an earlier run saved; the file exists once the task is complete."""
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["correct"] for line in lines]


@contextmanager
def _inference(model: GPT, device: torch.device) -> Iterator[None]:
    """Prepare a model for inference on batches with branches, and restore it afterwards."""
    before = model.attention
    # Batches differ in shape, so that compiled blocks would be compiled again and again; and not every attention path
    # supports branches.
    model.attention = "chunks" if device.type == "cpu" else "sdpa"
    try:
        with torch.no_grad(), model.as_written():
            yield
    finally:
        model.attention = before


def _evaluate_task(
    model: GPT,
    one: Prepared,
    runtime: Runtime,
    batch_tokens: int,
    report_progress: Callable[[int], None],
) -> list[dict]:
    """Return the decisions on a task's items."""
    prompts = one.load()
    context = model.config.max_seq_len
    too_long = _too_long(prompts, context)
    if too_long:
        share = f"{len(too_long):,} of {len(prompts.gold):,} items"
        print0(f"core: {one.task.label}, {share}: the answers do not fit into the context and count as wrong")
    # The longest first, rows without a shared prefix at the end.
    rows = sorted(_plan(prompts, context, too_long), key=lambda row: (len(row.prefix) > 0, row.tokens), reverse=True)
    own_rows = rows[runtime.rank :: runtime.world_size]  # sorted before: ranks get similar lengths
    score = _score_exact_match if one.task.kind == COMPLETION else _score_loss
    batches = _pack(own_rows, batch_tokens)
    sums = _option_sums(model, batches, score, len(prompts.scored), report_progress)
    if runtime.world_size > 1:
        sums = runtime.all_reduce(sums.to(runtime.device)).cpu()
    means = sums / torch.from_numpy(prompts.scored)  # 0 / 0 is nan: an option without scored tokens
    return _decide(prompts, means.tolist(), one.task.kind, too_long)


# ---- plan: from prompts to rows ----


class Row(NamedTuple):
    """Tokens of one item: a prefix, and branches that each continue the prefix."""

    prefix: np.ndarray  # (tokens,); empty where nothing is shared
    branches: list[np.ndarray]  # the first token of each is the last one that all share
    # (scored tokens, 4): branch, position in the branch whose output predicts the token, token, number of its option
    targets: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.prefix) + sum(len(branch) for branch in self.branches)


class Option(NamedTuple):
    """An option with scored tokens."""

    number: int  # among all options in the task
    ids: np.ndarray  # tokens after the prefix
    scored: int  # tokens at the end that count


def _too_long(prompts: Prompts, context: int) -> set[int]:
    """Return the items with an option whose scored tokens fill the whole context."""
    items = np.repeat(np.arange(len(prompts.options)), prompts.options)
    return set(items[prompts.scored >= context].tolist())


def _plan(prompts: Prompts, context: int, too_long: set[int]) -> list[Row]:
    """Return rows for all items that are not too long."""
    rows = []
    first = 0  # the item's first option among all options
    for item, (prefix, texts, scored) in enumerate(prompts):
        options = [Option(first + number, ids, scored[number]) for number, ids in enumerate(texts) if scored[number]]
        first += len(texts)
        if item in too_long or not options:
            continue
        if len(prefix) + max(len(ids) for ids in texts) <= context:
            rows.append(_row(prefix, options))
            continue
        # Prompts are cut from the left, so that options with different lengths have different prefixes.
        for option in options:
            ids = np.concatenate([prefix, option.ids])[-context:]
            cut = option._replace(ids=ids[-option.scored :])
            rows.append(_row(ids[: -option.scored], [cut]))
    return rows


def _row(prefix: np.ndarray, options: list[Option]) -> Row:
    branches: dict[bytes, np.ndarray] = {}
    owners = []  # the branch of each option
    for option in options:
        branch = np.concatenate([prefix[-1:], option.ids[:-1]])  # the output after the last token is not used
        branches.setdefault(branch.tobytes(), branch)
        # Equal options share a branch, so that their losses are a tie.
        owners.append(list(branches).index(branch.tobytes()))
    shared = prefix[:-1]
    before = 0  # tokens of a branch before the last shared one
    if len(branches) == 1:
        # A prefix with a single branch is plain text.
        branches = {b"": np.concatenate([shared, *branches.values()])}
        before = len(shared)
        shared = shared[:0]
    targets = []
    for option, owner in zip(options, owners, strict=True):
        scored = np.arange(len(option.ids) - option.scored, len(option.ids))
        owner_column = np.full(option.scored, owner)
        number_column = np.full(option.scored, option.number)
        # The last shared token predicts token 0 of an option.
        targets.append(np.stack([owner_column, before + scored, option.ids[scored], number_column], axis=1))
    return Row(shared, list(branches.values()), np.concatenate(targets))


# ---- pack and score: from rows to a score for each option ----


def _pack(rows: list[Row], batch_tokens: int) -> Iterator[list[Row]]:
    """Yield batches of at most `batch_tokens` tokens, padding included, but at least one row."""
    batch: list[Row] = []
    prefix_width = branch_width = branches = 0
    for row in rows:
        prefix_width = max(prefix_width, len(row.prefix))
        branch_width = max(branch_width, *(len(branch) for branch in row.branches))
        branches += len(row.branches)
        too_many = (len(batch) + 1) * prefix_width + branches * branch_width > batch_tokens
        # Branches of plain text are long; beside them short ones would be padded.
        if batch and (too_many or (len(row.prefix) == 0) != (len(batch[0].prefix) == 0)):
            yield batch
            batch = []
            prefix_width = len(row.prefix)
            branch_width = max(len(branch) for branch in row.branches)
            branches = len(row.branches)
        batch.append(row)
    if batch:
        yield batch


def _option_sums(
    model: GPT,
    batches: Iterable[list[Row]],
    score: Callable[[GPT, Tensor, Tensor], Tensor],
    options: int,
    report_progress: Callable[[int], None],
) -> Tensor:
    """Return each option's summed token scores, (options,) in fp64 on the host; 0 for options in no batch."""
    sums = torch.zeros(options, dtype=torch.float64)
    scores, numbers = [], []
    tokens = 0
    for batch in batches:
        hidden, targets = _forward(model, batch)
        positions, ids = _to_device(targets[:, :2].T, hidden.device)
        scores.append(score(model, hidden[positions], ids))  # the head sees scored positions alone
        numbers.append(targets[:, 2])
        tokens += sum(row.tokens for row in batch)
        report_progress(tokens)
    if not scores:  # there are fewer rows than ranks
        return sums
    on_host = torch.cat(scores).cpu().double()  # the only wait for the device
    return sums.index_add_(0, torch.from_numpy(np.concatenate(numbers)), on_host)


def _forward(model: GPT, batch: list[Row]) -> tuple[Tensor, np.ndarray]:
    """Return the hidden states of a batch's branches, (branches * width, channels), and the targets in them.

    targets: (scored tokens, 3): index among the hidden states, token, number of the option.
    """
    ids = _padded([branch for row in batch for branch in row.branches])
    targets = []
    first = 0  # number of the row's first branch
    for row in batch:
        branch, position, token, number = row.targets.T
        targets.append(np.stack([(first + branch) * ids.shape[1] + position, token, number], axis=1))
        first += len(row.branches)
    device = model.device
    cache = None
    if any(len(row.prefix) for row in batch):
        prefixes = [row.prefix for row in batch]
        counts = torch.tensor([len(row.branches) for row in batch])
        lengths = torch.tensor([len(branch) for row in batch for branch in row.branches])
        prefix = Prefix(model, _to_device(_padded(prefixes), device), torch.tensor([len(ids) for ids in prefixes]))
        cache = prefix.rows(torch.arange(len(batch)).repeat_interleave(counts), lengths)
    hidden = model.hidden(_to_device(ids, device), cache=cache)  # (branches, width, channels)
    return hidden.flatten(0, 1), np.concatenate(targets)


def _padded(texts: list[np.ndarray]) -> np.ndarray:
    ids = np.zeros((len(texts), max(len(text) for text in texts)), np.int64)  # token 0 pads; no target points there
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        # Pinned memory lets the copy overlap with the GPU's work.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _score_loss(model: GPT, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return one loss per token."""
    config = model.config
    return cross_entropy(
        hidden,
        model.head_weight,
        targets,
        reduction="none",
        softcap=config.softcap,
        vocab_size=config.vocab_size,
    )


def _score_exact_match(model: GPT, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return 0 for each token that was the likeliest, else 1."""
    # Logits take much memory: they are made in chunks.
    rows = max(1, CHUNK_BYTES[hidden.device.type] // (4 * model.config.padded_vocab))
    chunks = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([(model.logits(states).argmax(-1) != ids).float() for states, ids in chunks])


# ---- decide ----


def _decide(prompts: Prompts, means: list[float], kind: str, too_long: set[int]) -> list[dict]:
    """Return the decisions on all items. means: mean score per option, nan for an option without scored tokens."""
    decisions = []
    first = 0
    items = zip(prompts.options.tolist(), prompts.gold.tolist(), prompts.questions.tolist(), strict=True)
    for item, (count, gold, question) in enumerate(items):
        own = means[first : first + count]  # the options of this item
        first += count
        shown = [None if math.isnan(mean) else mean for mean in own]  # JSON has no NaN
        decision = {"item": item, "question": question}
        if item in too_long:
            decision |= {"correct": False, "too_long": True}
        elif kind == COMPLETION:
            decision |= {"correct": own[0] == 0, "missed": shown[0]}
        else:
            # Ties go to the first option. As in the public nanochat, nan is chosen only where it comes first.
            chosen = own.index(min(own))
            decision |= {"correct": chosen == gold, "chosen": chosen, "gold": gold, "losses": shown}
        decisions.append(decision)
    return decisions
