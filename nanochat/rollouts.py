"""Batches for reinforcement learning: prompts, sampled answers, and each answer's advantage within its group.

All prompts in a step go through the engine together. The seed, the step and a prompt's number in the task decide alone
which prompts are drawn and which random numbers their samples get: the number of ranks does not matter, and a resumed
run samples the same answers. Groups with equal rewards carry no gradient and are left out of the batch.

Conversations may be replayed in each step: the model learns their answers by cross-entropy, as in fine-tuning, so that
it keeps what the reward does not ask for. They are rows of the batch beside the answers.

The objective compares log-probabilities under the model and under the sampler. Both belong to the distribution at
temperature 1 over all tokens. Sampling at another temperature, or with top-k or top-p, draws from another distribution;
as usual, no correction is made for this difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import fitted_prompt, reply_parts
from nanochat.dataloader import BatchSource, DataRecord
from nanochat.decoder import Prefix
from nanochat.engine import Completion, Engine, Request
from nanochat.errors import TemplateError, UserError
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Record, print0
from nanochat.metrics import kept_figures
from nanochat.objectives import LossSum, Metric
from nanochat.packing import fit_conversation
from nanochat.protocols import Mixture, Task
from nanochat.scaling import require_multiple
from nanochat.statistics import NOT_KNOWN, Metrics, measured

if TYPE_CHECKING:
    from nanochat.run import Trainer
    from nanochat.train import State

MAX_CUT = 0.05  # share of answers cut at --max-new-tokens above which there is a warning
WARN_EVERY = 20  # steps
CLIP = 0.2  # the ratio model probability / sampler probability counts within 1 ± CLIP

# Name → advantages from rewards, both of shape (prompts, samples).
ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rewards: rewards - rewards.mean(1, keepdim=True),
    "std": lambda rewards: (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6),
}


# ---- rows and batches ----


class AnswerRow(NamedTuple):
    """An answer to learn from. All columns but the prompt have shape (answer tokens,).

    In a replayed conversation, everything behind the first question counts as the answer, and the advantage is the
    weight of a token's cross-entropy.
    """

    inputs: Tensor  # the prompt's last token, and the answer without its last one
    targets: Tensor  # the answer; -1 where the calculator wrote the token, not the model
    advantages: Tensor
    logprobs: Tensor  # of the targets under the sampler; 0 where there is none
    prompt: Tensor  # (prompt tokens - 1,): without the last token


class AnswerBatch(NamedTuple):
    """Answers side by side, padded behind their ends. The lengths are on the host, where micro-batches are planned.

    Answers to one prompt are neighbours, and the longest prompts come first: micro-batches have little padding.
    """

    inputs: Tensor  # (rows, longest answer)
    targets: Tensor  # (rows, longest answer), -1 also for padding
    advantages: Tensor  # (rows, longest answer)
    logprobs: Tensor  # (rows, longest answer), under the sampler
    prompts: Tensor  # (rows, longest prompt)
    answer_lengths: Tensor  # (rows,): inputs without padding
    prompt_lengths: Tensor  # (rows,): prompts without padding
    groups: Tensor  # (rows,): number of the prompt, below 0 in replayed conversations; on the host as well

    @property
    def replayed(self) -> Tensor:
        """True in rows with a replayed conversation: (rows, 1)."""
        return (self.groups < 0).to(self.inputs.device)[:, None]

    @classmethod
    def of(cls, groups: Mapping[int, Sequence[AnswerRow]], device: torch.device) -> "AnswerBatch":
        """Return the batch of these rows, by the prompt's number."""
        numbers, rows = batch_order(groups)
        return cls(
            inputs=pad([row.inputs for row in rows], 0, device),
            targets=pad([row.targets for row in rows], -1, device),
            advantages=pad([row.advantages for row in rows], 0.0, device),
            logprobs=pad([row.logprobs for row in rows], 0.0, device),
            prompts=pad([row.prompt for row in rows], 0, device),
            answer_lengths=torch.tensor([len(row.inputs) for row in rows]),
            prompt_lengths=torch.tensor([len(row.prompt) for row in rows]),
            groups=torch.tensor(numbers),
        )


class PromptedRow(Protocol):
    """The columns that each row of an answer has, with those above or others."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def prompt(self) -> Tensor: ...


class PromptedBatch(Protocol):
    """The columns that each batch of answers has, with those above or others."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def prompts(self) -> Tensor: ...
    @property
    def answer_lengths(self) -> Tensor: ...
    @property
    def prompt_lengths(self) -> Tensor: ...
    @property
    def groups(self) -> Tensor: ...


RowType = TypeVar("RowType", bound=PromptedRow)
BatchType = TypeVar("BatchType", bound=PromptedBatch)


def answer_row(prompt: Sequence[int], completion: Completion, advantage: float) -> AnswerRow:
    """Return the row of a sampled answer. The end token is a target if the answer stopped by itself."""
    tokens = list(completion.tokens)
    mask = list(completion.mask)
    if completion.end is not None:
        tokens.append(completion.end)
        mask.append(1)
    ids = torch.tensor(tokens)
    chosen = torch.tensor(mask)
    return AnswerRow(
        inputs=torch.cat([torch.tensor(prompt[-1:]), ids[:-1]]),  # shifted right by one
        targets=torch.where(chosen == 1, ids, -1),
        advantages=advantage * chosen,
        logprobs=chosen * torch.tensor(completion.logprobs),  # the end token's included
        prompt=torch.tensor(prompt[:-1]),
    )


def replay_row(ids: Sequence[int], mask: Sequence[int]) -> AnswerRow:
    """Return the row of a replayed conversation. ids, mask: as `render_conversation` makes them."""
    first = mask.index(1)  # the first token that the assistant writes
    tokens = torch.tensor(ids)
    learned = torch.tensor(mask)[first:]
    return AnswerRow(
        inputs=tokens[first - 1 : -1],
        targets=torch.where(learned == 1, tokens[first:], -1),
        advantages=learned.float(),
        logprobs=torch.zeros(len(learned)),
        prompt=tokens[: first - 1],
    )


def row_tokens(row: PromptedRow) -> int:
    """Return the tokens of an answer with its prompt, but for the last one, which is not an input."""
    return len(row.inputs) + len(row.prompt)


def group_tokens(rows: Sequence[PromptedRow]) -> int:
    """Return the tokens of a prompt and all its answers: the prompt is computed once."""
    return len(rows[0].prompt) + sum(len(row.inputs) for row in rows)


def batch_order(groups: Mapping[int, Sequence[RowType]]) -> tuple[list[int], list[RowType]]:
    """Return the group of each row, and the rows, in the order of a batch (see AnswerBatch)."""
    longest = {number: max(map(row_tokens, rows)) for number, rows in groups.items()}
    numbers = []
    ordered = []
    for number in sorted(groups, key=longest.__getitem__, reverse=True):
        numbers += [number] * len(groups[number])
        ordered += groups[number]
    return numbers, ordered


def pad(columns: Sequence[Tensor], filler: float, device: torch.device) -> Tensor:
    """Return columns of rows as one tensor, (rows, longest)."""
    return pad_sequence(list(columns), batch_first=True, padding_value=filler).to(device)


# ---- the source ----


class PromptSource(BatchSource):
    """Draws the examples of each step: an epoch is all of them in a new order, but for a rest that fills no step.

    The config is AnswerTuneSettings. count: of all examples. setting: compared on resume, as another one would draw
    other batches. together: rows that no micro-batch divides.
    """

    together = 1

    def __init__(self, trainer: "Trainer", count: int, setting: Record) -> None:
        self.config = trainer.config
        self.runtime = trainer.runtime
        self._examples = self.config.examples_per_step  # over all ranks
        require_multiple("examples per step", self._examples, self.runtime.world_size)  # every rank has equally many
        if count < self._examples:
            raise UserError(f"--examples-per-step={self._examples} is more than the {count} examples to learn from")
        self._setting = {"seed": self.config.seed, "examples": count} | setting
        self.count = count
        self._step = 0
        self._computed = 0  # tokens of the last batch on all ranks: each prompt once, with its answers
        self.steps = max(1, int(count // self._examples * self.config.epochs))  # whole steps only

    def draw(self) -> list[int]:
        """Return this rank's examples in the step."""
        # Dealt in turn; `Rollouts._log` joins the records in the same way.
        return self.draw_for_all()[self.runtime.rank :: self.runtime.world_size]

    def draw_for_all(self) -> list[int]:
        """Return the examples of all ranks in the step."""
        epoch, step = divmod(self._step, self.count // self._examples)
        order = np.random.default_rng((self.config.seed, epoch)).permutation(self.count)  # equal on all ranks
        return order[step * self._examples :][: self._examples].tolist()

    def split(self, batch: BatchType, rows: int) -> list[BatchType]:
        """Return micro-batches that fit into `rows` rows of full context: answers are short."""
        longest = int((batch.answer_lengths + batch.prompt_lengths).max())
        most = rows * self.config.max_seq_len // longest
        parts = super().split(batch, max(1, most // self.together) * self.together)
        return [type(batch)(*part) for part in parts]

    def computed(self, batch: BatchType, ranks: int) -> int:
        return self._computed

    # ---- position, for resuming ----

    @property
    def progress(self) -> float:
        return self._step / self.steps

    def state_dict(self) -> Record:
        """Return the position, equal on all ranks."""
        return {"setting": self._setting, "step": self._step}

    def load_state_dict(self, state: Record) -> None:
        """Continue from the position of a source with the same setting, on any number of ranks."""
        self._step = state["step"]


class Recorder(Protocol):
    """Keeps a record of a step, as MetricLog.write does."""

    def __call__(self, kind: str, step: int, **figures: Any) -> None: ...


@dataclass(frozen=True)
class Replay:
    """Conversations that are replayed.

    rows: conversations in each step, over all ranks. weight: of their mean loss per token, beside the mean loss per
    token of the answers.
    """

    chats: Mixture
    rows: int
    weight: float

    def draw(self, seed: int, step: int) -> list[int]:
        """Return the conversations of a step, on all ranks: all of them in a random order, then in another one."""
        count = len(self.chats)
        first = step * self.rows
        # The passes that the step takes part in, mostly one.
        passes = range(first // count, (first + self.rows - 1) // count + 1)
        order = np.concatenate([np.random.default_rng((seed, epoch)).permutation(count) for epoch in passes])
        return order[first - passes.start * count :][: self.rows].tolist()


class Rollouts(PromptSource):
    """An endless source of `AnswerBatch`es, with a row for each sampled answer, and for each replayed conversation.

    engine: samples with the weights in training, read again at each step. record: gets one record per prompt, as
    MetricLog.write does. The config is that of scripts.chat_rl. name: the task's, for the manifest. replay: what is
    replayed, if anything.
    """

    def __init__(
        self,
        trainer: "Trainer",
        task: Task,
        engine: Engine,
        record: Recorder,
        name: str = "task",
        replay: Replay | None = None,
    ) -> None:
        config = trainer.config
        # What prompts and answers depend on, compared on resume. A new flag stays out of it, or older runs would be
        # refused; start.resume compares all flags.
        setting = {
            "advantage": config.advantage,
            "examples_per_step": config.examples_per_step,
            "num_samples": config.num_samples,
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "top_k": config.top_k,
            "top_p": config.top_p,
        }
        super().__init__(trainer, len(task), setting)
        self.task = task
        self.engine = engine
        self.record = record
        self.tokenizer = trainer.tokenizer
        self.name = name
        self.replay = replay
        self.only_samples = config.init_lr_frac == 0  # at this rate a gradient would change nothing
        if replay:
            require_multiple("replayed conversations of a step", replay.rows, self.runtime.world_size)

    def origin(self) -> DataRecord:
        record = self._setting | {"tasks": {self.name: {"rows": len(self.task), "files": self.task.hashes()}}}
        if self.replay:
            record["replay"] = self.replay.chats.origin()
        return record

    def __next__(self) -> AnswerBatch:
        self.engine.update_weights()  # they changed since the last step
        requests = self._requests()
        answers = self.engine.generate(list(requests.values()))  # several per request
        records = list(map(self._record, requests, requests.values(), answers))
        groups = {}  # rows to learn from, by the prompt's number
        for question, request in enumerate(requests.values()):
            samples = records[question]["samples"]
            if len({sample["reward"] for sample in samples}) > 1 and not self.only_samples:
                groups[question] = [
                    answer_row(request.tokens, answer, sample["advantage"])
                    for answer, sample in zip(answers[question], samples, strict=True)
                ]
        replayed = self._replayed()  # of the step that `_step` still names
        self._step += 1
        self._log(records)
        self._weigh(replayed, groups)
        if not groups:  # every rank runs a forward pass: one token with advantage 0
            *_, request = requests.values()
            groups[0] = [answer_row(request.tokens, Completion([0], [0], "length", [0.0]), 0.0)]
        rows = groups | replayed
        self._computed = 0 if self.idle else sum(self.runtime.all_gather(sum(map(group_tokens, rows.values()))))
        return AnswerBatch.of(rows, self.runtime.device)

    def _replayed(self) -> dict[int, list[AnswerRow]]:
        """Return this rank's conversations to replay in the step, by numbers below 0."""
        if self.replay is None:
            return {}
        drawn = self.replay.draw(self.config.seed, self._step)
        rows = {}
        for place in range(self.runtime.rank, len(drawn), self.runtime.world_size):
            conversation = self.replay.chats[drawn[place]]
            try:
                # One token more than inputs.
                rendered, _ = fit_conversation(conversation, self.tokenizer, self.config.max_seq_len + 1)
            except TemplateError as error:
                print0(f"replay: conversation {drawn[place]:,} of the mixture is left out: {error}")
                continue
            # Else not even the first turn fits, or nothing in what fits is to be learned.
            if rendered and any(rendered[1]):
                rows[-1 - place] = [replay_row(*rendered)]
        return rows

    def _weigh(self, replayed: dict[int, list[AnswerRow]], groups: dict[int, list[AnswerRow]]) -> None:
        """Set the weight of a replayed token.

        The loop divides by the tokens of answers, on all ranks, so that they get the mean of their losses; the factor
        here makes it the mean over replayed tokens for those.
        """
        if self.replay is None:
            return
        own = [sum(int((row.targets >= 0).sum()) for row in chain(*some.values())) for some in (groups, replayed)]
        answers, conversations = map(sum, zip(*self.runtime.all_gather(own), strict=True))
        factor = self.replay.weight * answers / max(conversations, 1)
        for [row] in replayed.values():
            row.advantages.mul_(factor)

    def _requests(self) -> dict[int, Request]:
        """Return the requests for answers to this rank's examples in the step, by their indices into the task."""
        config = self.config
        requests = {}
        first = (config.seed << 32) + self._step * self.count
        for example in self.draw():
            # Shortened where prompt and answer exceed a row, to half of it; then the answer has the other half.
            prompt, _ = fitted_prompt(self.task[example], self.tokenizer, config.max_seq_len, config.max_new_tokens)
            requests[example] = Request(
                prompt,
                min(config.max_new_tokens, config.max_seq_len - len(prompt)),
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                n=config.num_samples,
                seed=first + example,  # no two prompts of a run share random numbers
                logprobs=True,
            )
        return requests

    def _record(self, example: int, request: Request, completions: list[Completion]) -> Record:
        """Return the record for samples.jsonl: a prompt's answers with rewards and advantages."""
        conversation = self.task[example]
        texts = [self.tokenizer.decode(completion.tokens) for completion in completions]
        rewards = [float(self.task.reward(conversation, text)) for text in texts]
        advantages = ADVANTAGES[self.config.advantage](torch.tensor([rewards]))[0].tolist()
        samples = [
            {
                "reward": reward,
                "advantage": advantage,
                "tokens": len(completion.tokens),
                "reason": completion.reason,
                "text": text,
                "parts": reply_parts(completion.tokens, self.tokenizer),
            }
            for completion, text, reward, advantage in zip(completions, texts, rewards, advantages, strict=True)
        ]
        return {
            "example": example,
            "prompt": self.tokenizer.decode(request.tokens),
            "messages": conversation["messages"][:-1],  # in full, where the prompt is shortened
            "answer": conversation["messages"][-1]["content"],
            "samples": samples,
        }

    def _log(self, own: list[Record]) -> None:
        """Record all ranks' samples in prompt order, and set the step's metrics."""
        # Prompts are dealt to ranks in turn, so the ranks' records alternate.
        records = list(chain(*zip(*self.runtime.all_gather(own), strict=True)))
        for record in records:
            self.record(f"example {record['example']}", self._step, **record)
        samples = list(chain(*(record["samples"] for record in records)))
        rewards = [[sample["reward"] for sample in record["samples"]] for record in records]  # (prompts, samples)
        self.metrics = {
            "rl/reward": fmean(chain(*rewards)),
            "rl/best_of_group": fmean(map(max, rewards)),
            "rl/groups_that_teach": fmean(min(group) < max(group) for group in rewards),
            "rl/tokens": fmean(sample["tokens"] for sample in samples),
            "rl/cut": fmean(sample["reason"] == "length" for sample in samples),
        }

    def follow(self, state: "State") -> None:
        """Print the metrics after a step, keep the moving averages for the card, and warn of answers that are cut."""
        # Single steps are noisy; the notes are saved with the checkpoint.
        for note, figure in (("reward", "rl/reward"), ("cut", "rl/cut")):
            value = self.metrics[figure]
            state.notes[note] = 0.9 * state.notes.get(note, value) + 0.1 * value
        # Of the whole run; each step has as many answers.
        state.notes["cut_steps"] = state.notes.get("cut_steps", 0) + 1
        state.notes["cut_sum"] = state.notes.get("cut_sum", 0.0) + self.metrics["rl/cut"]
        figures = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        print0(f"step {state.step:05d}", *figures, sep=" | ")
        if state.notes["cut"] > MAX_CUT and state.step % WARN_EVERY == 1:
            print0(
                f"warning: {state.notes['cut']:.0%} of the latest answers are cut at "
                f"--max-new-tokens={self.config.max_new_tokens}, and an answer that is cut has no end to learn: "
                "use a larger limit"
            )

    @property
    def idle(self) -> bool:
        """True if no group in the last step has a gradient that counts, on any rank."""
        return self.only_samples or self.metrics.get("rl/groups_that_teach") == 0


def open_rollouts(trainer: "Trainer", name: str, task: Task, engine: Engine, replay: Replay | None = None) -> Rollouts:
    """Return the source of sampled answers to a task; samples.jsonl has them with rewards, to read."""
    samples = MetricLog(trainer.folder, name="samples")
    samples.resume(trainer.resumed.step if trainer.resumed else -1)  # drops later records; -1: an earlier run's
    return Rollouts(trainer, task, engine, samples.write, name, replay)


# ---- the objective ----


def answer_logprobs(model: GPT, batch: PromptedBatch) -> Tensor:
    """Return the log-probability of each target in a batch, (rows, longest answer), with -0 for none.

    Each prompt is computed once for all answers of a group, which are neighbours: it is the first row's prompt.
    """
    longest = int(batch.answer_lengths.max())  # in this micro-batch
    longest_prompt = int(batch.prompt_lengths.max())
    _, texts, answers = batch.groups.unique_consecutive(return_inverse=True, return_counts=True)
    firsts = answers.cumsum(0) - answers
    prompts = batch.prompts[firsts.to(batch.prompts.device), :longest_prompt]
    cache = Prefix(model, prompts, batch.prompt_lengths[firsts]).rows(texts, batch.answer_lengths)
    # The loss for each target is minus the log-probability.
    return -model(batch.inputs[:, :longest], batch.targets[:, :longest], reduction="none", cache=cache)


def _clipped(chosen: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """Return the clipped loss. With one update per sample the ratio is about 1 and the gradient equals "plain"."""
    ratio = (chosen - sampled).exp()
    limited = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(
        ratio * advantages,
        limited * advantages,  # no gain from moving further than the limit
    )


# Name → token loss, given (log-probability under the model, under the sampler, advantage).
POLICY_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda chosen, sampled, advantages: -chosen * advantages,
    "clip": _clipped,
}


@dataclass
class PolicyGradient:
    """Raises the probability of answers that did better than their group, and of the answers that are replayed.

    loss: a key of POLICY_LOSSES. kl: the penalty for moving away from the model `reference`, estimated on the drawn
    tokens; 0 for none.
    """

    loss: str = "plain"
    kl: float = 0.0
    reference: GPT | None = None
    replays: bool = False  # batches have replayed conversations

    def __call__(self, model: GPT, batch: AnswerBatch) -> LossSum:
        chosen = answer_logprobs(model, batch)  # (rows, longest)
        longest = chosen.shape[1]
        learned = batch.targets[:, :longest] >= 0
        kept = learned & ~batch.replayed  # tokens of sampled answers
        sampled = batch.logprobs[:, :longest]
        weights = batch.advantages[:, :longest]
        losses = POLICY_LOSSES[self.loss](chosen, sampled, weights)
        if self.kl:
            assert self.reference is not None, "the penalty needs a reference"
            with torch.no_grad():
                before = answer_logprobs(self.reference, batch)
            apart = before - chosen  # log of the ratio reference / model
            # Never negative; the expected value is the KL divergence if tokens are drawn at temperature 1.
            losses = losses + self.kl * (apart.exp() - apart - 1)
        count = kept.sum()
        # Summed distance between log-probabilities under model and sampler, for the log.
        gap = ((chosen.detach() - sampled).abs() * kept).sum()
        metrics = {"rl/logprob_gap": Metric(gap, count)}
        # A token's cross-entropy is minus the log-probability of the target.
        again = learned & batch.replayed
        replayed = -chosen * again
        if self.replays:
            metrics["rl/replay_loss"] = Metric(replayed.sum(), again.sum())
        return LossSum((losses * kept + replayed * weights).sum(), count, metrics)


# ---- figures ----


def reinforcement_metrics(state: "State", task: str, questions: int) -> Metrics:
    """Return the metrics for reinforcement learning: reward, and pass@k before the first and after the last step."""
    steps = state.notes.get("cut_steps")  # a run from before they were counted has none
    cut = state.notes["cut_sum"] / steps if steps else None
    metrics = {
        "Task": task,
        "Training questions": questions,
        "Number of iterations": state.step,
        "Reward, a moving average": state.notes.get("reward", NOT_KNOWN),
        "Answers cut at the limit": measured(100 * cut if cut is not None else None, spec=".1f", unit="%"),
    }
    return metrics | before_and_after(state, f"{task} ")


def before_and_after(state: "State", prefix: str = "") -> Metrics:
    """Return the metrics for figures that evaluations took before the first and after the last step."""
    metrics = {}
    for moment, which in (("before", "first"), ("after", "last")):
        for name, metric in kept_figures(state, which).items():
            metrics[f"{prefix}{name.partition('/')[2]} {moment}"] = metric  # without eval/ or chat/
    return metrics
