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

    question: int  # its place in the step
    prompt: list[int]
    answer: Completion
    advantage: float
    end: int

    def columns(self) -> tuple[Tensor, ...]:
        """Inputs, from the prompt's last token on, for each its target, advantage and log-probability; the prompt up
        to there. Target -1: it was not chosen."""
        ids = torch.tensor([*self.answer.tokens, *[self.end] * (self.answer.reason == "stop")])
        chosen = torch.tensor([*self.answer.mask, 1])[: len(ids)]
        learned = (
            torch.where(chosen == 1, ids, -1),
            self.advantage * chosen,
            chosen * torch.tensor(self.answer.logprobs),
        )
        prompt = torch.tensor(self.prompt)
        return torch.cat([prompt[-1:], ids[:-1]]), *learned, prompt[:-1]


class Rollouts:
    """An endless source of (inputs, targets, advantages, logprobs, prompts, sizes), a row for each answer.

    task: has a length, conversations, and `reward(conversation, completion)`. engine: of the model that is trained,
    whose weights it takes before it samples. context: most tokens of a question and its answer. logprobs: the
    sampler's. Targets are what the model chose, to stop too, and not what the calculator said. inputs begin with the
    last token of the prompt, prompts (rows, longest) hold what stands before that. sizes (rows, 3), on the host:
    lengths of inputs and prompts without padding, and which question it is; answers to one stand together, the
    longest question first, so that a micro-batch has little padding. write: takes what there is to tell of each.
    """

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
        write: Callable[..., None] = lambda kind, **record: None,
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
            Row(question, prompts[question], answer, advantage, self._end)
            for question, (group, own, same) in enumerate(zip(groups, advantages.tolist(), alike, strict=True))
            for answer, advantage in zip(group, own, strict=True)
            if not same
        ]
        nothing = Row(0, prompts[0], Completion([0], [0], "length", [0.0]), 0.0, self._end)  # for a step runs something
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
            self._write(f"question {record['example']}", **record)
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
    def idle(self) -> bool:
        """Whether no group of the last step teaches anything, on any rank."""
        return self.told.get("rl/groups_that_teach") == 0

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
    """The batch of some rows."""
    sized = [(row.columns(), row.question) for row in rows]
    longest: dict[int, int] = {}
    for (inputs, *_, prompt), question in sized:
        longest[question] = max(longest.get(question, 0), len(inputs) + len(prompt))
    sized.sort(key=lambda one: (-longest[one[1]], one[1]))
    columns, questions = zip(*sized, strict=True)
    sizes = [(len(given[0]), len(given[-1]), question) for given, question in zip(columns, questions, strict=True)]
    parts = zip(zip(*columns, strict=True), (0, -1, 0.0, 0.0, 0), strict=True)
    return *(pad_sequence(part, True, empty).to(device) for part, empty in parts), torch.tensor(sizes)
