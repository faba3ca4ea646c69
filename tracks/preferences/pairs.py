"""Preferences: pairs of a chosen and a rejected answer to one prompt, and an objective that learns from them (DPO).

The frozen parent gives each answer's log-probabilities once, before training. They are kept on disk by hash, so no
second model takes memory while training runs. A pair is two rows of a batch, the chosen answer first; each prompt is
computed once for both answers.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor

from nanochat.chat import (
    as_messages,
    check_conversation,
    is_learned,
    refuse_template_values,
    render_conversation,
    render_prompt,
    tools_of,
    without_null_arguments,
)
from nanochat.errors import TemplateError, UserError
from nanochat.gpt import GPT
from nanochat.log import Record, print0
from nanochat.models import load_model, weights_hash
from nanochat.objectives import LossSum, Metric
from nanochat.packing import REFUSED
from nanochat.paths import base_dir, read_jsonl, text_sha256, write_bytes
from nanochat.protocols import Conversation
from nanochat.rollouts import (
    PromptSource,
    answer_logprobs,
    batch_order,
    before_and_after,
    group_tokens,
    pad,
    row_tokens,
)
from nanochat.settings import given
from nanochat.statistics import Estimate, Metrics, mean_estimate, measured
from nanochat.tokenizer import Tokenizer
from nanochat.train import State

if TYPE_CHECKING:
    from nanochat.run import Trainer

Pair = list[Conversation]  # two conversations that differ in the last message: chosen, rejected

SIDES = ("chosen", "rejected")
CHUNK = 256  # pairs that are padded together where no gradient is needed
# Distance from ln 2 at which the first loss counts as wrong; rounding moves it by less.
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}

# ---- pairs in files ----


def read_pairs(names: str) -> list[Pair]:
    """Return the pairs in JSONL files, whose names are separated by commas; a UserError names file, line and fault."""
    pairs = []
    for name in filter(None, names.split(",")):
        pairs += read_jsonl(Path(name).expanduser(), as_pair)
    if not pairs:
        raise UserError(f"--pairs={names}: there is no line with prompt, chosen and rejected")
    return pairs


def as_pair(record: Record) -> Pair:
    """Return the pair in a JSON record; who may follow whom in it is checked where the tokenizer is known.

    prompt is a text or messages. Both answers are texts, lists of parts, or lists of messages, of which the last is the
    answer. Where these begin with the question, what both have in common is the prompt, and `prompt` is not read.
    tools: those the assistant may call, for the chat template of a public model.
    """
    for name in SIDES:
        if name not in record:
            raise UserError(f"a pair has prompt, chosen and rejected, and {name} is missing")
    found = [_messages_of(record[side]) for side in SIDES]
    prompt = []
    if any(messages[0]["role"] == "assistant" for messages in found):
        if "prompt" not in record:
            raise UserError("a pair has prompt, chosen and rejected, and prompt is missing")
        prompt = as_messages(record["prompt"], "user")
    refuse_template_values(record)
    offered = tools_of(record)
    tools = {"tools": offered} if offered else {}
    pair = [
        check_conversation({"messages": without_null_arguments([*prompt, *messages]), **tools}, any_order=True)
        for messages in found
    ]
    if pair[0]["messages"][:-1] != pair[1]["messages"][:-1]:
        raise UserError("chosen and rejected differ before their last message, and only that may differ")
    answers = [conversation["messages"][-1] for conversation in pair]
    if any(answer["role"] != "assistant" or not is_learned(answer) for answer in answers):
        raise UserError("chosen and rejected have to end with what the assistant says, and is to learn")
    if answers[0] == answers[1]:
        raise UserError("chosen and rejected are equal")
    return pair


def _messages_of(answer: Any) -> list[Any]:
    """Return an answer, as a text, parts or messages, as messages."""
    if isinstance(answer, list) and answer and all(isinstance(one, dict) and "role" in one for one in answer):
        return answer
    return [{"role": "assistant", "content": answer}]


# ---- pairs from sampled answers ----

# Type of a part -> its text as the tokenizer decodes it.
DECODED = {
    "text": "{}",
    "python": "<|python_start|>{}<|python_end|>",
    "python_output": "<|output_start|>{}<|output_end|>",
}


def make_pairs(records: Iterable[Record], most: int) -> list[Record]:
    """Return pairs, as `as_pair` reads them, from the records of `Rollouts`, at most `most` for each prompt.

    The chosen answer has the prompt's best reward, the rejected one a lower reward. Answers that are empty or have no
    end, and those with special tokens other than calls, are left out.
    """
    groups = defaultdict(dict)  # messages as JSON -> text -> sample: each answer once
    for record in records:
        for sample in record["samples"]:
            text = sample["text"]
            # Special tokens that belong to no call are in no part.
            whole = "".join(DECODED[part["type"]].format(part["text"]) for part in sample["parts"])
            if text and text == whole and sample["reason"] == "stop":
                groups[json.dumps(record["messages"])][text] = sample
    pairs = []
    for messages, answers in groups.items():
        best = max(sample["reward"] for sample in answers.values())
        right = [sample["parts"] for sample in answers.values() if sample["reward"] == best]
        wrong = [sample["parts"] for sample in answers.values() if sample["reward"] < best]
        for chosen, rejected in islice(zip(right, wrong, strict=False), most):
            pairs.append({"prompt": json.loads(messages), "chosen": chosen, "rejected": rejected})
    if not pairs:
        raise UserError("no prompt has a better and a worse answer: use more prompts, or a higher temperature")
    return pairs


OPTIONS = {"--pairs": make_pairs}  # of scripts.rollouts


# ---- the source ----


class PairRow(NamedTuple):
    """One answer of a pair. All columns but the prompt have shape (answer tokens,)."""

    inputs: Tensor  # the prompt's last token, and the answer without its last one
    targets: Tensor  # the answer, its end token included; -1 where the model does not learn the token
    reference: Tensor  # log-probabilities of the targets under the parent; `Pairs.set_reference` fills them in
    prompt: Tensor  # (prompt tokens - 1,): without the last token

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, start: int) -> "PairRow":
        """Return the row of a rendered conversation. mask: 1 on learned tokens; start: of the answer."""
        return cls(
            inputs=ids[start - 1 : -1],  # shifted right by one
            targets=torch.where(mask[start:] == 1, ids[start:], -1),
            reference=torch.zeros(len(ids) - start),
            prompt=ids[: start - 1],
        )


def pair_rows(number: int, pair: Pair, tokenizer: Tokenizer) -> list[PairRow]:
    """Return the rows of a pair, chosen and rejected; a UserError names the pair, counted from 1 over all files."""
    try:
        rendered = [tuple(map(torch.tensor, render_conversation(conversation, tokenizer))) for conversation in pair]
        prompt = torch.tensor(render_prompt(pair[0], tokenizer))
        # Both rows share one prompt. An answer's first letters may be one token with the last ones of the prompt, which
        # then ends earlier for both.
        start = min(_answer_start(ids, mask, prompt) for ids, mask in rendered)
        if not torch.equal(rendered[0][0][:start], rendered[1][0][:start]):
            raise TemplateError(
                "the chat template writes another prompt for the chosen answer than for the rejected one"
            )
        return [PairRow.of(ids, mask, start) for ids, mask in rendered]
    except UserError as error:
        raise type(error)(f"pair {number:,} of --pairs: {error}") from None


def render_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer) -> tuple[list[tuple[Pair, list[PairRow]]], int]:
    """Return the pairs with their rows, and how many the chat template refuses; a UserError if those are too many."""
    rendered = []
    refused: list[TemplateError] = []
    for number, pair in enumerate(pairs, 1):
        try:
            rendered.append((pair, pair_rows(number, pair, tokenizer)))
        except TemplateError as error:
            refused.append(error)
    if len(refused) > REFUSED * len(pairs):
        raise UserError(f"{refused[0]} ({len(refused):,} of {len(pairs):,} pairs are refused)")
    if refused:
        print0(f"data: {len(refused):,} of {len(pairs):,} pairs are left out; {refused[0]}")
    return rendered, len(refused)


def _answer_start(ids: Tensor, mask: Tensor, prompt: Tensor) -> int:
    """Return where the last answer of a rendered conversation begins: behind its prompt, or with its learned tokens."""
    if torch.equal(ids[: len(prompt)], prompt):
        return len(prompt)
    starts = (mask.diff(prepend=torch.zeros(1, dtype=mask.dtype)) == 1).nonzero()
    if not len(starts):
        raise TemplateError("the chat template writes nothing for the assistant to learn")
    return int(starts[-1])


class PairBatch(NamedTuple):
    """Pairs, two rows each, the chosen answer first; padded behind their ends. The longest pairs come first."""

    inputs: Tensor  # (rows, longest answer)
    targets: Tensor  # (rows, longest answer), -1 also for padding
    reference: Tensor  # (rows, longest answer): log-probabilities under the parent
    prompts: Tensor  # (rows, longest prompt)
    answer_lengths: Tensor  # (rows,), on the host: inputs without padding
    prompt_lengths: Tensor  # (rows,), on the host: prompts without padding
    groups: Tensor  # (rows,), on the host: number of the pair

    @classmethod
    def of(cls, pairs: Mapping[int, Sequence[PairRow]], device: torch.device) -> "PairBatch":
        """Return the batch of these rows, by the pair's number."""
        numbers, rows = batch_order(pairs)
        return cls(
            inputs=pad([row.inputs for row in rows], 0, device),
            targets=pad([row.targets for row in rows], -1, device),
            reference=pad([row.reference for row in rows], 0.0, device),
            prompts=pad([row.prompt for row in rows], 0, device),
            answer_lengths=torch.tensor([len(row.inputs) for row in rows]),
            prompt_lengths=torch.tensor([len(row.prompt) for row in rows]),
            groups=torch.tensor(numbers),
        )


class Pairs(PromptSource):
    """An endless source of batches with two rows for each pair.

    Pairs longer than the context are left out. The order of the prompts' hashes decides which share is held out, not
    the order of the files; pairs with one prompt are on one side. The config is that of tracks.preferences.train.
    """

    together = 2

    def __init__(self, trainer: "Trainer", pairs: Sequence[Pair]) -> None:
        config = trainer.config
        runtime = trainer.runtime
        rendered, self.refused = render_pairs(pairs, trainer.tokenizer)
        # Pairs with one prompt have an order too.
        rendered.sort(key=lambda one: (text_sha256(json.dumps(one[0][0]["messages"][:-1])), json.dumps(one[0])))
        pairs = [pair for pair, _ in rendered]
        answers = [rows for _, rows in rendered]
        self.answers = [rows for rows in answers if max(map(row_tokens, rows)) <= config.max_seq_len]
        self.left_out = len(pairs) - len(self.answers)
        prompts = [chosen.prompt for chosen, _ in self.answers]
        learned = int(len(self.answers) * (1 - config.held_out))
        while 0 < learned < len(prompts) and torch.equal(prompts[learned - 1], prompts[learned]):
            learned -= 1
        if self.left_out and learned < config.examples_per_step:
            raise UserError(
                f"{self.left_out:,} of {len(pairs):,} pairs are longer than --max-seq-len={config.max_seq_len}, and "
                f"{learned:,} are left to learn from, fewer than --examples-per-step={config.examples_per_step}"
            )
        if self.answers and not learned:
            raise UserError(
                f"--held-out={config.held_out:g} holds out all pairs, because they have too few prompts: "
                "give more, or a smaller share"
            )
        # This rank's; pairs to learn from have lower numbers.
        self.held_out = range(learned + runtime.rank, len(self.answers), runtime.world_size)
        parent = trainer.start.weights
        assert not isinstance(parent, int)  # a checkpoint: pairs train no new model
        manifest = parent.manifest
        # A resumed run needs its parent no more.
        self.parent = manifest["source"]["setting"]["parent"] if trainer.resumed else weights_hash(manifest)
        setting = {
            "parent": self.parent,  # the SHA-256 of its weights
            "pairs": text_sha256(json.dumps(pairs)),
            "tokenizer": trainer.tokenizer.content_hash,
            "context": config.max_seq_len,
            "dtype": runtime.dtype_name,
        }
        self.path = base_dir() / "reference_logprobs" / f"{text_sha256(json.dumps(setting))}.safetensors"
        super().__init__(trainer, learned, setting)

    def __next__(self) -> PairBatch:
        batch = self._batch(self.draw())
        self._computed = sum(group_tokens(self.answers[number]) for number in self.draw_for_all())
        self._step += 1
        return batch

    def _batch(self, numbers: Sequence[int]) -> PairBatch:
        return PairBatch.of({number: self.answers[number] for number in numbers}, self.runtime.device)

    def micro_batches(self, numbers: Sequence[int], rows: int) -> Iterator[PairBatch]:
        """Yield these pairs in micro-batches that fit into `rows` rows of full context."""
        for start in range(0, len(numbers), CHUNK):
            yield from self.split(self._batch(numbers[start : start + CHUNK]), rows)

    @torch.no_grad()
    def set_reference(self, open_parent: Callable[[], GPT], rows: int) -> None:
        """Fill in each answer's log-probabilities under the parent, computed if no file has them yet."""
        own = [row.reference for row in chain(*self.answers)]
        if not self.runtime.broadcast(self.path.exists):
            model = open_parent()  # freed when this function ends
            mine = range(self.runtime.rank, len(self.answers), self.runtime.world_size)
            for batch in self.micro_batches(mine, rows):
                logprobs = answer_logprobs(model, batch)
                for i, number in enumerate(batch.groups.tolist()):
                    reference = self.answers[number][i % 2].reference
                    reference.copy_(logprobs[i, : len(reference)])
            # Each rank has its part, and 0 elsewhere.
            found = self.runtime.all_reduce(torch.cat(own).to(self.runtime.device))
            self.runtime.broadcast(lambda: write_bytes(self.path, save({"logprobs": found.cpu()})))
        found = load_file(self.path)["logprobs"]
        for logprobs, part in zip(own, found.split([len(row) for row in own]), strict=True):
            logprobs.copy_(part)


# ---- the objective ----


def by_pair(values: Tensor) -> Tensor:
    """Return the sums over tokens, (pairs, 2), from (rows, longest answer)."""
    return values.sum(1).view(-1, 2)


def chosen_minus_rejected(sides: Tensor) -> Tensor:
    """Return chosen minus rejected, (pairs,), from (pairs, 2)."""
    return sides[:, 0] - sides[:, 1]


# Name → each answer's score in the loss, from the log-ratios to the parent and the lengths, both (pairs, 2).
PREFERENCE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dpo": lambda gains, lengths: gains,
    # The mean over an answer's tokens: a long answer weighs as much as a short one.
    "dpo-norm": lambda gains, lengths: gains / lengths,
}


@dataclass
class Preference:
    """Raises the probability of chosen answers over rejected ones, relative to the parent.

    loss: a key of PREFERENCE_LOSSES. sft_weight: of the mean loss on the tokens of the chosen answer. The loss is a
    mean over pairs.
    """

    loss: str = "dpo"
    beta: float = 0.1
    sft_weight: float = 0.0

    def figures(self, model: GPT, batch: PairBatch) -> dict[str, Tensor]:
        """Return figures for each pair, (pairs,).

        loss: without the SFT term. accuracy: 1 if the chosen answer is the likelier one. gained: 1 if the margin is
        positive. margin: chosen minus rejected log-ratio to the parent, in nats. kl: to the parent, in nats per token
        of both answers; unbiased if the parent sampled them at temperature 1, never negative. total: to be minimized.
        """
        logprobs = answer_logprobs(model, batch)  # (rows, longest), 0 where no target is
        longest = logprobs.shape[1]
        apart = logprobs - batch.reference[:, :longest]
        lengths = by_pair(batch.targets[:, :longest] >= 0)
        chances = by_pair(logprobs)
        gains = by_pair(apart)
        strayed = by_pair(apart.exp() * (apart - 1) + 1)
        margins = chosen_minus_rejected(gains)
        scores = PREFERENCE_LOSSES[self.loss](gains, lengths)
        losses = -F.logsigmoid(self.beta * chosen_minus_rejected(scores))
        return {
            "loss": losses,
            "accuracy": (chosen_minus_rejected(chances) > 0).float(),
            "gained": (margins > 0).float(),
            "margin": margins,
            "kl": strayed.sum(1) / lengths.sum(1),
            "total": losses - self.sft_weight * chances[:, 0] / lengths[:, 0],
        }

    def __call__(self, model: GPT, batch: PairBatch) -> LossSum:
        figures = self.figures(model, batch)
        total = figures.pop("total")
        count = torch.tensor(len(total), device=total.device)
        metrics = {f"dpo/{name}": Metric(one.sum(), count) for name, one in figures.items()}
        return LossSum(total.sum(), count, metrics)


# ---- evaluation and metrics ----


# Figure of the objective -> its name in the report card; `total` has none.
TITLES = {
    "loss": "Loss",
    "accuracy": "Pair accuracy",
    "gained": "Pairs with a positive margin",
    "margin": "Margin",
    "kl": "KL to the parent",
}


@torch.no_grad()
def pair_scores(
    trainer: "Trainer", source: Pairs, objective: Preference, numbers: Sequence[int]
) -> dict[str, Estimate]:
    """Return the figures of these pairs on all ranks, by title. numbers: this rank's."""
    found = []  # figures of each pair, in the order of TITLES
    for batch in source.micro_batches(numbers, trainer.device_rows):
        figures = objective.figures(trainer.model, batch)
        found += torch.stack([figures[name] for name in TITLES], dim=1).tolist()
    pairs = list(chain(*trainer.runtime.all_gather(found)))
    if not pairs:  # nothing is held out
        return {}
    by_figure = map(mean_estimate, zip(*pairs, strict=True))
    return dict(zip(TITLES.values(), by_figure, strict=True))


def open_pairs(trainer: "Trainer", pairs: Sequence[Pair], objective: Preference) -> Pairs:
    """Return the source of a run; UserError if the first step's loss is not ln 2, as it is for the parent itself."""
    source = Pairs(trainer, pairs)
    trainer.compare_ranks(source)
    parent = given(trainer.start.parent)
    place = parent.stage, parent.tag, parent.step
    source.set_reference(
        lambda: load_model(*place, trainer.runtime, sha256=source.parent).model,
        trainer.device_rows,
    )
    with trainer.model.whole():  # ranks may have other numbers of micro-batches, and sharded layers gather in each
        loss, _ = pair_scores(trainer, source, objective, source.draw())["Loss"]
    if not (trainer.resumed or abs(loss - math.log(2)) <= TOLERANCE[trainer.runtime.dtype_name]):
        raise UserError(
            f"the loss begins at {loss:.5f}, not at ln 2: {source.path} does not have the log-probabilities of the "
            "model that training starts from; remove it"
        )
    return source


def preference_metrics(state: State, source: Pairs) -> Metrics:
    """Return the metrics of preference training, on held-out pairs and tasks."""
    metrics: Metrics = {
        "Pairs to learn from": source.count,
        "Held-out pairs": len(source.answers) - source.count,
        "Left out, being too long": source.left_out,
        **({"Left out, refused by the chat template": source.refused} if source.refused else {}),
        "Number of iterations": state.step,
    }
    for side, rows in zip(SIDES, zip(*source.answers, strict=True), strict=True):
        metrics[f"Mean length, {side}"] = measured(fmean(len(row.inputs) for row in rows), spec=".1f", unit=" tokens")
    return metrics | before_and_after(state)
