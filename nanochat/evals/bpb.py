"""Bits per byte: how well a model predicts a fixed text, on a scale for all tokenizers; and samples.

The text is a split's first bytes. Its documents, each after <|bos|>, make one long row of tokens, cut every
`seq_len`; each token is predicted once. So the figure depends on text, model and context length alone: not on batch
size, ranks or padding. Special tokens stand for no bytes and do not count. With a stride, rows start every `stride`
tokens and overlap: then no token is predicted from a short context, except in the first row.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import chain
from typing import NamedTuple, Protocol

import pyarrow
import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.data.corpus import Corpus
from nanochat.engine import Engine, Request
from nanochat.evals.rows import overlapping_rows
from nanochat.gpt import GPT
from nanochat.log import Progress, print0
from nanochat.metrics import keep_figures
from nanochat.models import as_written
from nanochat.run import Trainer
from nanochat.runtime import Runtime, in_halves
from nanochat.statistics import Estimate, mean_estimate
from nanochat.tokenizer import FORMAT, Tokenizer
from nanochat.train import Evaluation, State

# The public reference has the same prompts, so samples can be compared.
PROMPTS = """\
The capital of France is
The chemical symbol of gold is
If yesterday was Friday, then tomorrow will be
The opposite of hot is
The planets of the solar system are:
My favorite color is
If 5*x + 3 = 13, then x is""".split("\n")


class EvalText(NamedTuple):
    """A text to evaluate on."""

    ids: Tensor  # all tokens in order
    lengths: Tensor  # bytes for each token in the vocabulary, 0 for special ones
    bytes: int


def first_documents(batches: Iterable[pyarrow.Array], max_bytes: int) -> list[str]:
    """Return the first `max_bytes` from documents in Arrow text arrays; the last one is cut at a character."""
    documents = []
    room = max_bytes
    for text in chain.from_iterable(batch.to_pylist() for batch in batches):
        content = text.encode()
        documents.append(content[:room].decode(errors="ignore"))  # without a character that was cut in two
        room -= len(content)
        if room <= 0:
            break
    return list(filter(None, documents))  # nothing may be left of the last one


def read_text(batches: Iterable[pyarrow.Array], tokenizer: Tokenizer, max_bytes: int) -> EvalText:
    """Return the text of `first_documents` in tokens; each document is predicted from its start on."""
    documents = first_documents(batches, max_bytes)
    ids, _ = tokenizer.core.encode_batch(documents, tokenizer.bos)
    size = sum(len(text.encode()) for text in documents)
    ids, lengths = (torch.from_numpy(values).long() for values in (ids, tokenizer.token_lengths()))
    assert tokenizer.format != FORMAT or lengths[ids].sum() == size  # ours are a text's bytes, neither more nor fewer
    return EvalText(ids, lengths, size)


# ---- sums over rows ----


class TokenLosses(Protocol):
    """A model, or a function that gives several kinds of losses from one forward."""

    def __call__(self, ids: Tensor, targets: Tensor, reduction: str) -> Tensor:
        """Return losses in nats, (rows, seq_len) or (kinds, rows, seq_len), for ids and targets of (rows, seq_len)."""


def text_bpb(
    model: TokenLosses, text: EvalText, seq_len: int, batch_size: int, runtime: Runtime, stride: int = 0
) -> Estimate:
    """Return a model's bits per byte for a text.

    A collective, the same figure on all ranks; the error is over rows. batch_size: rows at once on a rank; all rows
    have `seq_len` tokens, so compiled code meets one shape. stride: tokens from row to row, 0: seq_len.
    """
    [found] = bpb_of_kinds(1, model, text, seq_len, batch_size, runtime, stride)
    return found


def bpb_of_kinds(
    kinds: int,
    losses: TokenLosses,
    text: EvalText,
    seq_len: int,
    batch_size: int,
    runtime: Runtime,
    stride: int = 0,
) -> list[Estimate]:
    """Return the bits per byte of a text for each of some kinds of losses, as in `text_bpb`."""
    stride = stride or seq_len
    inputs, targets = overlapping_rows(text.ids, seq_len, stride)
    weights = text.lengths.expand(kinds, -1)  # a token weighs as many bytes as it stands for
    found = []
    for sums in sum_rows(losses, inputs, targets, weights, batch_size, runtime, seq_len - stride):
        # Tokens of a public model may stand for other bytes than the text's, as where an accent joins its letter.
        share = sums[:, 1].sum().item() / text.bytes
        found.append(Estimate(*(figure * share for figure in bits_per_byte(sums))))
    return found


@torch.no_grad()
def sum_rows(
    model: TokenLosses,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    batch_size: int,
    runtime: Runtime,
    overlap: int = 0,
) -> Tensor:
    """Return (kinds, rows, 2) in fp64, for each row the summed losses and weights: a collective.

    inputs, targets: (rows, seq_len). weights: (kinds, vocabulary), each token's weight in each kind of sum; a loss
    counts if the weight is above 0. `model(ids, targets, reduction="none")` gives losses in nats (target -1: none), the
    same ones for all kinds or (kinds, rows, seq_len). overlap: first targets in a row that the row before has too.
    """
    count = len(inputs)
    weights = weights.to(runtime.device)
    sums = torch.zeros(len(weights), count, 2, dtype=torch.float64)  # fp64: long texts add up many losses
    progress = Progress()

    def measure(numbers: Tensor) -> Tensor:
        goals = targets[numbers]  # a copy
        goals[numbers < 0] = -1
        # The first row that has a token as target gives it the longest context; later rows have it as context only.
        goals[numbers > 0, :overlap] = -1
        goals = goals.to(runtime.device)
        losses = model(inputs[numbers].clamp(min=0).to(runtime.device), goals, reduction="none")
        losses = losses.view(-1, *goals.shape).float()  # (kinds or 1, rows, seq_len)
        sizes = torch.where(goals >= 0, weights[:, goals.clamp(min=0)], 0)  # (kinds, rows, seq_len)
        return torch.stack([(losses * (sizes > 0)).sum(2), sizes.sum(2).float()], dim=2).cpu()

    # Ranks take rows in turn.
    for numbers in torch.arange(count)[runtime.rank :: runtime.world_size].split(batch_size):
        # The last batch is padded with rows without targets.
        padded = F.pad(numbers, (0, batch_size - len(numbers)), value=-1)
        pairs = torch.cat(list(in_halves(measure, padded)), dim=1)
        sums[:, numbers] = pairs[:, : len(numbers)].double()
        done = 1 + numbers[-1].item()  # on all ranks, about
        progress.update(f"evaluate: {done:,} of {count:,} rows", done / count)
    return runtime.all_reduce(sums.to(runtime.device)).cpu() if runtime.world_size > 1 else sums


def bits_per_byte(sums: Tensor) -> Estimate:
    """Return the `ratio` of summed losses in nats to bytes, in bits."""
    return ratio(sums / sums.new_tensor([math.log(2), 1]))


def ratio(sums: Tensor) -> Estimate:
    """Return the sum of column 0 over the sum of column 1 of (rows, 2), and the standard error over rows."""
    above, below = sums.sum(0).tolist()
    value = above / below
    # The spread: losses in each row beyond a proportional share (a ratio of sums is not a mean).
    excess = mean_estimate((sums[:, 0] - value * sums[:, 1]).tolist())
    return Estimate(value, len(sums) * excess.stderr / below)


# ---- evaluations during training ----


def text_validation(trainer: Trainer, corpus: Corpus, name: str = "val") -> list[Evaluation]:
    """Return the evaluation for bits per byte on a corpus's validation text; none for --eval-every=-1.

    name: of the figure in the log, NAME/bpb; another one for a further corpus.
    """
    config = trainer.config
    if config.eval_every < 0:
        return []
    text = validation_text(trainer, corpus)

    def measure() -> dict[str, Estimate]:
        bpb = text_bpb(trainer.model, text, config.max_seq_len, trainer.device_rows, trainer.runtime)
        return {f"{name}/bpb": bpb}

    kind = "validation" if name == "val" else f"validation {name}"
    return [log_validation(trainer, measure, kind)]


def validation_text(trainer: Trainer, corpus: Corpus) -> EvalText:
    """Return the first bytes of a corpus's validation text, as many as a run asks for."""
    given = trainer.config.eval_bytes
    size = trainer.runtime.validation_bytes if given < 0 else given
    return read_text(corpus.batches("val"), trainer.tokenizer, size)


def log_validation(
    trainer: Trainer, measure: Callable[[], dict[str, Estimate]], kind: str = "validation"
) -> Evaluation:
    """Return the evaluation that logs and keeps the figures of `measure`: name -> value and standard error.

    kind: of the record in the metric log, which has one of a kind for each step.
    On a CPU the model runs uncompiled: most runs end before compiling its forward alone has paid.
    """

    def validate(state: State) -> None:
        with as_written(trainer.model) if trainer.runtime.device.type == "cpu" else nullcontext():
            found = measure()
        keep_figures(trainer.log, state, kind, found)

    return Evaluation(trainer.config.eval_every, validate, at_start=True)


# ---- samples ----


def write_samples(model: GPT, tokenizer: Tokenizer) -> list[list[str]]:
    """Return [prompt, continuation] for each of PROMPTS, and print them: the likeliest tokens."""
    room = model.config.max_seq_len - 1  # leaves space for one new token
    # A short context keeps a prompt's end. 16 tokens are written after each prompt.
    requests = [Request(tokenizer.begin(prompt)[-room:], 16, stop=frozenset(tokenizer.text_ends)) for prompt in PROMPTS]
    rows = []
    for prompt, [completion] in zip(PROMPTS, Engine(model, tokenizer).generate(requests), strict=True):
        text = " ".join(tokenizer.decode(completion.tokens).split())
        print0(f"sample: {prompt} ... {text}")
        rows.append([prompt, text])
    return rows


def sample_writing(trainer: Trainer, every: int) -> Evaluation:
    """Return the evaluation that prints samples, on rank 0."""

    def write(state: State) -> None:
        if trainer.runtime.rank == 0:  # no collective inside: other ranks go on
            write_samples(trainer.model, trainer.tokenizer)

    return Evaluation(every, write)
