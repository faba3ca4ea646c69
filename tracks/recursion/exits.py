"""Bits per byte at each exit of a recursive model: for validation during training, and for scripts.base_loss."""

from dataclasses import replace

import torch
from torch import Tensor

from nanochat.data.corpus import Corpus
from nanochat.evals.bpb import EvalText, bits_per_byte, bpb_of_kinds, log_validation, sum_rows, validation_text
from nanochat.evals.rows import overlapping_rows
from nanochat.log import Record, table_of
from nanochat.run import Trainer
from nanochat.runtime import Runtime
from nanochat.statistics import Estimate
from nanochat.train import Evaluation
from tracks.recursion.model import RecursiveGPT
from tracks.recursion.settings import validation_every


def bits_by_exit(
    model: RecursiveGPT, text: EvalText, seq_len: int, batch_size: int, runtime: Runtime, stride: int = 0
) -> list[Estimate]:
    """Return the bits per byte for a text at each exit; see `text_bpb`, which has the last exit's."""

    def losses(ids: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return torch.stack([model.loss(hidden, targets, reduction) for hidden in model.exits(ids)])

    return bpb_of_kinds(model.steps, losses, text, seq_len, batch_size, runtime, stride)


def compare_exits(
    model: RecursiveGPT, text: EvalText, first: int, second: int, seq_len: int, batch_size: int, runtime: Runtime
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the bits per byte for a text with two numbers of exits, and what the second saves, paired by rows."""

    def losses(ids: Tensor, targets: Tensor, reduction: str) -> Tensor:
        found = {}
        for number, hidden in enumerate(model.exits(ids), 1):
            if number in (first, second):
                found[number] = model.loss(hidden, targets, reduction)
        return torch.stack([found[first], found[second]])

    before = model.steps
    inputs, targets = overlapping_rows(text.ids, seq_len, seq_len)
    try:
        model.steps = max(first, second)
        one, other = sum_rows(losses, inputs, targets, text.lengths.expand(2, -1), batch_size, runtime)
    finally:
        model.steps = before
    saved = torch.stack([one[:, 0] - other[:, 0], one[:, 1]], dim=1)
    return bits_per_byte(one), bits_per_byte(other), bits_per_byte(saved)


def exit_validation(trainer: Trainer, corpus: Corpus) -> list[Evaluation]:
    """Return the evaluation as of `text_validation`, with a figure for each exit too if there are several."""
    config = trainer.config
    if config.eval_every < 0:
        return []
    text = validation_text(trainer, corpus)
    model = trainer.model
    assert isinstance(model, RecursiveGPT)

    def measure() -> dict[str, Estimate]:
        found = bits_by_exit(model, text, config.max_seq_len, trainer.device_rows, trainer.runtime)
        exits = {f"val/bpb at exit {i}": bpb for i, bpb in enumerate(found)} if len(found) > 1 else {}
        return {"val/bpb": found[-1], **exits}

    return [replace(log_validation(trainer, measure), every=validation_every(config))]


def loss_table(model: RecursiveGPT, text: EvalText, length: int, batch_size: int, runtime: Runtime) -> Record:
    """Return a table with the bits per byte at each exit, up to twice as many exits as were trained."""
    trained = model.config.supervision
    model.steps = 2 * trained
    found = bits_by_exit(model, text, length, batch_size, runtime)
    rows = [[i, "yes" if i < trained else "no", *bpb] for i, bpb in enumerate(found)]
    return table_of("Bits per byte at each exit", "Exit | Trained | bpb:.4f | ±:.4f", rows)


LOSS_TABLES = {"recursive": loss_table}
