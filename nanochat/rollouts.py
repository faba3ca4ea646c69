"""Batches for reinforcement learning: prompts, sampled answers, and each answer's advantage within its group.

All prompts in a step go through the engine together. The seed, the step and a prompt's number in the task decide alone
which prompts are drawn and which random numbers their samples get: the number of ranks does not matter, and a resumed
run samples the same answers. Groups with equal rewards carry no gradient and are left out of the batch.

The objective compares log-probabilities under the model and under the sampler. Both belong to the distribution at
temperature 1 over all tokens. Sampling at another temperature, or with top-k or top-p, draws from another distribution;
as usual, no correction is made for this difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import fitted_prompt, reply_parts
from nanochat.dataloader import Batch, BatchSource, DataRecord
from nanochat.decoder import Prefix
from nanochat.engine import Completion, Engine, Request
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Record, print0
from nanochat.objectives import Loss
from nanochat.outcome import NOT_KNOWN, Metrics, kept_figures
from nanochat.scaling import require_multiple

if TYPE_CHECKING:
    from nanochat.run import Trainer
    from nanochat.train import State

CLIP = 0.2  # the ratio model probability / sampler probability counts within 1 ± CLIP

Columns = tuple[Tensor, ...]  # of one answer, see `columns`

# Name → advantages from rewards, both of shape (prompts, samples).
ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rewards: rewards - rewards.mean(1, keepdim=True),
    "std": lambda rewards: (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6),
}


def columns(prompt: Sequence[int], completion: Completion, advantage: float, end: int) -> Columns:
    """Return inputs, targets, advantages, the sampler's log-probabilities, and the prompt without the last token.

    Inputs begin with the prompt's last token. A target is -1 where the calculator wrote the token, not the model.
    The end token is a target if the answer stopped by itself.
    """
    tokens, mask = list(completion.tokens), list(completion.mask)
    if completion.reason == "stop":
        tokens.append(end)  # the engine leaves this token out
        mask.append(1)
    ids, chosen = torch.tensor(tokens), torch.tensor(mask)
    inputs = torch.cat([torch.tensor(prompt[-1:]), ids[:-1]])  # shifted right by one
    logprobs = chosen * torch.tensor(completion.logprobs)  # the end token's included; 0 for outputs
    return inputs, torch.where(chosen == 1, ids, -1), advantage * chosen, logprobs, torch.tensor(prompt[:-1])


def row_tokens(row: Columns) -> int:
    """Return the tokens of an answer with the prompt, but for the last one, which is no input."""
    return len(row[0]) + len(row[-1])


class PromptSource(BatchSource):
    """Draws the examples of each step: an epoch is all of them in a new order, but for a rest that fills no step.

    The config is AnswerTuneSettings. count: of all examples. setting: compared on resume, as another one would draw
    other batches. together: rows that no micro-batch divides.
    """

    together = 1

    def __init__(self, trainer: "Trainer", count: int, setting: Record) -> None:
        self.config, self.runtime = trainer.config, trainer.runtime
        self._examples = self.config.examples_per_step  # over all ranks
        require_multiple("examples per step", self._examples, self.runtime.world_size)  # every rank has equally many
        if count < self._examples:
            raise ValueError(f"--examples-per-step={self._examples} is more than the {count} examples to learn from")
        self._setting = {"seed": self.config.seed, "examples": count} | setting
        self.count = count
        self._step = 0
        self.steps = max(1, int(count // self._examples * self.config.epochs))  # whole steps only

    def draw(self) -> list[int]:
        """Return this rank's examples in the step."""
        epoch, step = divmod(self._step, self.count // self._examples)
        order = np.random.default_rng((self.config.seed, epoch)).permutation(self.count)  # equal on all ranks
        # Dealt in turn; `Rollouts._log` joins the records in the same way.
        chosen = order[step * self._examples :][: self._examples]
        return chosen[self.runtime.rank :: self.runtime.world_size].tolist()

    def split(self, batch: Batch, rows: int) -> list[Batch]:
        """Return micro-batches that fit into `rows` rows of full context: answers are short."""
        longest = int(batch[-1][:, :2].sum(1).max())  # answer and prompt
        most = rows * self.config.max_seq_len // longest
        return super().split(batch, max(1, most // self.together) * self.together)

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


class Rollouts(PromptSource):
    """An endless source of (inputs, targets, advantages, logprobs, prompts, sizes), one row per answer.

    The first four have shape (rows, longest answer); logprobs come from the sampler. prompts (rows, longest prompt)
    end before the last token, the first input. sizes (rows, 3), on the host, hold the unpadded lengths for inputs and
    prompt, and the prompt's number. Answers to one prompt stand together, the longest prompt first, so that
    micro-batches have little padding.

    task: conversations; its method `reward` gives a number for a conversation and a completion. engine: samples with
    the weights in training, read again at each step. record: receives kind, step and figures for one record per
    prompt, as MetricLog.write does. The config is that of scripts.chat_rl. name: the task's, for the manifest.
    """

    def __init__(
        self, trainer: "Trainer", task: Any, engine: Engine, record: Callable[..., None], name: str = "task"
    ) -> None:
        names = "advantage examples_per_step num_samples max_new_tokens temperature top_k top_p".split()
        super().__init__(trainer, len(task), {name: getattr(trainer.config, name) for name in names})
        self.task, self.engine = task, engine
        self.record = record
        self.tokenizer = trainer.tokenizer
        self._end = self.tokenizer.special_tokens["<|assistant_end|>"]
        self.name = name

    def origin(self) -> DataRecord:
        return self._setting | {"tasks": {self.name: {"rows": len(self.task), "files": self.task.hashes()}}}

    def __next__(self) -> Batch:
        self.engine.refresh()  # the weights changed since the last step
        requests = self._requests()
        answers = self.engine.generate(list(requests.values()))  # several per request
        records = list(map(self._record, requests, requests.values(), answers))
        groups = {}  # rows to learn from, by the prompt's number
        for question, request in enumerate(requests.values()):
            samples = records[question]["samples"]
            if len({sample["reward"] for sample in samples}) > 1:
                groups[question] = [
                    columns(request.tokens, answer, sample["advantage"], self._end)
                    for answer, sample in zip(answers[question], samples, strict=True)
                ]
        self._step += 1
        self._log(records)
        if not groups:  # every rank runs a forward pass: one token with advantage 0
            groups[0] = [columns(request.tokens, Completion([0], [0], "length", [0.0]), 0.0, self._end)]
        return assemble(groups, self.runtime.device)

    def _requests(self) -> dict[int, Request]:
        """Return the requests for answers to this rank's examples in the step, by their indices into the task."""
        config = self.config
        requests = {}
        first = (config.seed << 32) + self._step * self.count
        for example in self.draw():
            # Shortened where prompt and answer exceed the context.
            prompt, _ = fitted_prompt(self.task[example], self.tokenizer, config.max_seq_len, config.max_new_tokens)
            requests[example] = Request(
                prompt,
                config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                n=config.num_samples,
                seed=first + example,  # no two prompts of a run share random numbers
                stop=frozenset([self._end]),  # one stop token, so that the token chosen at a stop is known
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
        """Print the metrics after a step, and keep the moving average of the reward."""
        # Single steps are noisy; the notes are saved with the checkpoint.
        reward = self.metrics["rl/reward"]
        state.notes["reward"] = 0.9 * state.notes.get("reward", reward) + 0.1 * reward
        figures = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        print0(f"step {state.step:05d}", *figures, sep=" | ")

    @property
    def idle(self) -> bool:
        """True if no group in the last step has a gradient, on any rank."""
        return self.metrics.get("rl/groups_that_teach") == 0


def assemble(groups: Mapping[int, list[Columns]], device: torch.device) -> Batch:
    """Pad each prompt's rows, as `columns` returns them, to a batch in the order that Rollouts describes."""
    longest = {question: max(map(row_tokens, rows)) for question, rows in groups.items()}
    rows, sizes = [], []
    for question in sorted(groups, key=longest.get, reverse=True):
        rows += groups[question]
        sizes += [(len(row[0]), len(row[-1]), question) for row in groups[question]]
    fillers = (0, -1, 0.0, 0.0, 0)  # inputs, targets, advantages, logprobs, prompts
    parts = zip(*rows, strict=True)
    padded = [pad_sequence(part, True, filler).to(device) for part, filler in zip(parts, fillers, strict=True)]
    return *padded, torch.tensor(sizes)


def open_rollouts(trainer: "Trainer", name: str, task: Any, engine: Engine) -> Rollouts:
    """Return the source of sampled answers to a task; samples.jsonl has them with rewards, to read."""
    samples = MetricLog(trainer.folder, name="samples")
    samples.resume(trainer.resumed.step if trainer.resumed else -1)  # drops later records; -1: an earlier run's
    return Rollouts(trainer, task, engine, samples.write, name)


# ---- the objective ----


def answer_logprobs(model: GPT, batch: Batch) -> Tensor:
    """Return the log-probability of each target in a batch from `assemble`, (rows, longest answer), with -0 for none.

    Each prompt is computed once for all answers: they lie together and share the first row's prompt.
    """
    inputs, targets, *_, prompts, sizes = batch  # sizes (rows, 3), on the host
    lengths, given, questions = sizes.T  # answer length, prompt length, question
    longest, longest_prompt = int(lengths.max()), int(given.max())  # in this micro-batch
    _, texts, answers = questions.unique_consecutive(
        return_inverse=True,
        return_counts=True,
    )
    firsts = answers.cumsum(0) - answers
    prompts = prompts[firsts.to(prompts.device), :longest_prompt]
    cache = Prefix(model, prompts, given[firsts]).rows(texts, lengths)
    # The loss for each target is minus the log-probability.
    return -model(
        inputs[:, :longest],
        targets[:, :longest],
        reduction="none",
        cache=cache,
    )


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
    """Raises the probability of answers that did better than their group. batch: the columns from `Rollouts`.

    loss: a key of POLICY_LOSSES. kl: the penalty for moving away from the model `reference`, estimated on the drawn
    tokens; 0 for none.
    """

    loss: str = "plain"
    kl: float = 0.0
    reference: GPT | None = None

    def __call__(self, model: GPT, batch: Batch) -> Loss:
        chosen = answer_logprobs(model, batch)  # (rows, longest)
        targets, advantages, sampled = (column[:, : chosen.shape[1]] for column in batch[1:4])
        kept = targets >= 0
        losses = POLICY_LOSSES[self.loss](chosen, sampled, advantages)
        if self.kl:
            with torch.no_grad():
                before = answer_logprobs(self.reference, batch)
            apart = before - chosen  # log of the ratio reference / model
            # Never negative; the expected value is the KL divergence if tokens are drawn at temperature 1.
            losses = losses + self.kl * (apart.exp() - apart - 1)
        count = kept.sum()
        # Summed distance between log-probabilities under model and sampler, for the log.
        gap = ((chosen.detach() - sampled).abs() * kept).sum()
        return (losses * kept).sum(), count, {"rl/logprob_gap": (gap, count)}


# ---- figures ----


def reinforcement_metrics(state: "State", task: str, questions: int) -> Metrics:
    """Return the metrics for reinforcement learning: reward, and pass@k before the first and after the last step."""
    metrics = {
        "Task": task,
        "Training questions": questions,
        "Number of iterations": state.step,
        "Reward, a moving average": state.notes.get("reward", NOT_KNOWN),
    }
    return metrics | before_and_after(state, f"{task} ")


def before_and_after(state: "State", prefix: str = "") -> Metrics:
    """Return the metrics for figures that evaluations took before the first and after the last step."""
    metrics = {}
    for moment, which in (("before", "first"), ("after", "last")):
        for name, metric in kept_figures(state, which).items():
            metrics[f"{prefix}{name.partition('/')[2]} {moment}"] = metric  # without eval/ or chat/
    return metrics
