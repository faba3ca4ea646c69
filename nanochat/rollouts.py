"""The batches of reinforcement learning: questions, sampled answers, and how much better than its group each one did.

All questions of a step go through the engine together. Who is asked what, and draws what, follows from the seed, the
step and the question's place in it alone: not from the number of ranks, and a run that goes on samples what it would
have sampled. Groups whose answers all earned the same teach nothing and are left out before anything is computed.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import fitted_prompt
from nanochat.engine import Completion, Request
from nanochat.log import print0

ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {  # of rewards (questions, samples)
    "mean": lambda rewards: rewards - rewards.mean(1, keepdim=True),
    "std": lambda rewards: (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6),
}


@dataclass(frozen=True)
class Sampling:
    """examples: questions of a step, of all ranks. samples: answers to each."""

    examples: int = 16
    samples: int = 4
    max_new_tokens: int = 64
    temperature: float = 0.7
    top_k: int = 50


@dataclass(frozen=True)
class Row:
    """An answer to learn from. end: the token that stops an answer, of which that was the choice if it stopped."""

    prompt: list[int]
    answer: Completion
    advantage: float
    end: int

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer.tokens, *[self.end] * (self.answer.reason == "stop")]

    def columns(self) -> tuple[Tensor, ...]:
        """Inputs, targets, advantages and log-probabilities, one for each input; target -1: it was not chosen."""
        ids, given = torch.tensor(self.ids), len(self.prompt)
        chosen = torch.zeros(len(ids))
        chosen[given:] = torch.tensor([*self.answer.mask, 1])[: len(ids) - given]
        logprobs = torch.zeros(len(ids))
        logprobs[given:] = torch.tensor(self.answer.logprobs)
        return ids[:-1], torch.where(chosen == 1, ids, -1)[1:], (self.advantage * chosen)[1:], (logprobs * chosen)[1:]


class Rollouts:
    """An endless source of (inputs, targets, advantages, logprobs, lengths); all but the last are (rows, longest row).

    task: has a length, conversations, and `reward(conversation, completion)`. engine: of the model that is trained,
    whose weights it takes before it samples. context: most tokens of a question and its answer. logprobs: the
    sampler's. Targets are what the model chose, to stop too, and not what the calculator said. lengths: of the rows
    without padding, falling, where the host can read them. write: takes what there is to tell of each question.
    """

    prefetchable = False  # or what is learned from would be one step old

    def __init__(
        self,
        task: Any,
        engine: Any,
        tokenizer: Any,
        runtime: Any,
        sampling: Sampling,
        *,
        context: int,
        advantage: str = "mean",
        seed: int = 0,
        epochs: float = 1.0,
        write: Callable[..., None] = lambda **record: None,
    ):
        if advantage not in ADVANTAGES:
            raise ValueError(f"--advantage={advantage} is not known, take one of {', '.join(ADVANTAGES)}")
        if sampling.samples < 2 or not sampling.temperature:
            raise ValueError("answers are compared with others to their question: take --num-samples=2 and more, drawn")
        if sampling.examples % runtime.world_size:
            raise ValueError(f"--examples-per-step={sampling.examples} is no multiple of {runtime.world_size} ranks")
        if len(task) < sampling.examples:
            raise ValueError(f"--examples-per-step={sampling.examples} is more than the {len(task)} that the task has")
        self.task, self.engine, self.tokenizer, self.sampling = task, engine, tokenizer, sampling
        self.runtime, self._write, self._advantage = runtime, write, ADVANTAGES[advantage]
        self._setting = {"seed": seed, "examples": len(task), "advantage": advantage, "sampling": asdict(sampling)}
        self._seed, self._step = seed, 0
        self._room, self._lost = (context, sampling.max_new_tokens), False  # whether prompts were too long for it
        self._end = tokenizer.special_tokens["<|assistant_end|>"]
        self.steps = max(1, int(len(task) // sampling.examples * epochs))
        self.wait_seconds = 0.0
        self.told: dict[str, float] = {}  # of the last step, of all ranks

    def __iter__(self) -> "Rollouts":
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        start = time.perf_counter()
        self.engine.refresh()
        asked = [(number, self.task[number]) for number in self._numbers()]
        prompts, lost = zip(*(fitted_prompt(chat, self.tokenizer, *self._room) for _, chat in asked), strict=True)
        if any(lost) and not self._lost:
            about = f"{len(lost) - lost.count(0)} of {len(lost)} prompts are longer than the context"
            print0(f"rollouts: {about} and lose {sum(lost)} turns, or their beginning; later ones are not told")
        self._lost = self._lost or any(lost)
        groups = self.engine.generate(list(map(self._request, self._places(), prompts)), logprobs=True)
        texts = [[self.tokenizer.decode(answer.tokens) for answer in group] for group in groups]
        pairs = zip(asked, texts, strict=True)
        rewards = torch.tensor([[float(self.task.reward(chat, text)) for text in said] for (_, chat), said in pairs])
        alike = (rewards == rewards[:, :1]).all(1, keepdim=True)  # asked of the rewards, for rounding makes differences
        advantages = self._advantage(rewards).masked_fill(alike, 0.0)
        self._step += 1
        self._tell(asked, prompts, groups, texts, rewards, advantages)
        rows = [
            Row(prompt, answer, advantage, self._end)
            for prompt, group, own, same in zip(prompts, groups, advantages.tolist(), alike, strict=True)
            for answer, advantage in zip(group, own, strict=True)
            if not same
        ]
        nothing = Row(prompts[0], Completion(), 0.0, self._end)  # a step needs something to run
        batch = assemble(rows or [nothing], self.runtime.device)
        self.wait_seconds += time.perf_counter() - start
        return batch

    def _places(self) -> range:
        """Of this rank's questions in the step."""
        return range(self.runtime.rank, self.sampling.examples, self.runtime.world_size)

    def _numbers(self) -> list[int]:
        """Of this rank's questions: an epoch is a shuffle of all, and what is left of it does not fill a step."""
        epoch, step = divmod(self._step, len(self.task) // self.sampling.examples)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self.task))
        return [int(order[step * self.sampling.examples + place]) for place in self._places()]

    def _request(self, place: int, prompt: list[int]) -> Request:
        given, draw = self.sampling, self._step * self.sampling.examples + place
        settings = {"temperature": given.temperature, "top_k": given.top_k, "n": given.samples}
        stop = frozenset([self._end])  # so that it is known which token the model chose when it stopped
        return Request(prompt, given.max_new_tokens, seed=(self._seed << 32) + draw, stop=stop, **settings)

    def _tell(self, asked: list, prompts: list, groups: list, texts: list, rewards: Tensor, advantages: Tensor) -> None:
        records = []
        for (number, chat), prompt, *columns in zip(asked, prompts, groups, texts, rewards, advantages, strict=True):
            record = {"step": self._step, "example": number, "prompt": self.tokenizer.decode(prompt)}
            record |= {"answer": chat["messages"][-1]["content"], "samples": []}
            for answer, text, reward, advantage in zip(*columns, strict=True):
                about = {"tokens": len(answer.tokens), "reason": answer.reason, "text": text}
                record["samples"].append({"reward": float(reward), "advantage": float(advantage), **about})
            records.append(record)
        records = [record for of_ranks in zip(*self.runtime.everyones(records), strict=True) for record in of_ranks]
        for record in records:
            self._write(**record)
        earned = [[sample["reward"] for sample in record["samples"]] for record in records]
        samples = list(itertools.chain(*(record["samples"] for record in records)))
        self.told = {
            "rl/reward": statistics.fmean(itertools.chain(*earned)),
            "rl/best_of_group": statistics.fmean(map(max, earned)),
            "rl/groups_that_teach": statistics.fmean(min(own) < max(own) for own in earned),
            "rl/tokens": statistics.fmean(sample["tokens"] for sample in samples),
            "rl/stopped": statistics.fmean(sample["reason"] == "stop" for sample in samples),
        }

    # ---- where the consumer is ----

    @property
    def progress(self) -> float:
        return self._step / self.steps

    def place(self) -> list[str]:
        """To be told where a loss is not finite."""
        return [f"the answers of step {self._step}"]

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks."""
        return {"setting": dict(self._setting), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where rollouts of the same setting were, on whatever number of ranks."""
        if state["setting"] != self._setting:
            raise ValueError(f"the saved place is for {state['setting']} and not {self._setting}: start anew")
        self._step = state["step"]

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


def assemble(rows: list[Row], device: torch.device) -> tuple[Tensor, ...]:
    """The batch of some rows, the longest first, so that a micro-batch has little padding."""
    columns = sorted((row.columns() for row in rows), key=lambda columns: -len(columns[0]))
    lengths = torch.tensor([len(inputs) for inputs, *_ in columns])
    padding = (0, -1, 0.0, 0.0)
    padded = (
        pad_sequence(parts, True, empty) for parts, empty in zip(zip(*columns, strict=True), padding, strict=True)
    )
    return *(part.to(device) for part in padded), lengths
