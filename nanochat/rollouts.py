"""The batches of reinforcement learning: questions, sampled answers, and how much better than its group each one did.

All questions of a step go through the engine together. Who draws what follows from the seed, the step and the number of
the question alone, so a run that goes on samples what it would have sampled. Groups whose answers all earned the same
teach nothing and are left out before anything is computed for them.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanochat.chat import render_prompt
from nanochat.engine import Request

LENGTH_MULTIPLE = 64  # rows are padded to it, so that a compiler meets few shapes
ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {  # rewards (questions, samples) → advantages
    "mean": lambda rewards: rewards - rewards.mean(1, keepdim=True),
    "std": lambda rewards: (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6),
}


@dataclass(frozen=True)
class Sampling:
    """examples: questions of a step, of all ranks. samples: answers to each."""

    examples: int
    samples: int
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0


class Rollouts:
    """An endless source of (inputs, targets, advantages, log-probabilities), each (rows, length), rows as they come.

    task: has a length, conversations, and `reward(conversation, completion)`. engine: of the model that is trained,
    whose weights it takes before it samples. advantages and the sampler's log-probabilities stand where targets do;
    what the calculator said is no target. file: where the samples go, as JSON lines.
    """

    prefetchable = False  # or what is learned from would be one step old

    def __init__(
        self,
        task: Any,
        engine: Any,
        tokenizer: Any,
        sampling: Sampling,
        *,
        advantage: str = "mean",
        seed: int = 0,
        epochs: float = 1.0,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        file: Path | None = None,
    ):
        if advantage not in ADVANTAGES:
            raise ValueError(f"advantage {advantage} is not known, take one of {', '.join(ADVANTAGES)}")
        if sampling.examples % world_size or sampling.samples < 2:
            raise ValueError(
                f"{sampling.examples} examples cannot be shared by {world_size} ranks, or {sampling.samples} samples "
                f"not compared: take a multiple of the ranks, and 2 samples or more"
            )
        if len(task) < sampling.examples:
            raise ValueError(f"the task has {len(task)} examples, a step asks for {sampling.examples}: take fewer")
        self.task, self.engine, self.tokenizer, self.sampling = task, engine, tokenizer, sampling
        self.rank, self.world_size, self.device, self.file = rank, world_size, torch.device(device), file
        self.steps = max(1, int(len(task) * epochs) // sampling.examples)
        self._advantage, self._seed, self._step = ADVANTAGES[advantage], seed, 0
        self._setting = {"seed": seed, "examples": len(task), "advantage": advantage, "sampling": asdict(sampling)}
        self.wait_seconds = 0.0
        self.told: dict[str, float] = {}  # of the last step, on this rank

    def __iter__(self) -> "Rollouts":
        return self

    def __next__(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        start = time.perf_counter()
        self.engine.refresh()
        numbers = self._numbers()
        chats = [self.task[number] for number in numbers]
        given = {name: getattr(self.sampling, name) for name in ("max_new_tokens", "temperature", "top_k")}
        prompts = [render_prompt(chat, self.tokenizer) for chat in chats]
        seeds = [self._seed * 1_000_003 + self._step * self.sampling.examples + number for number in self._places()]
        requests = [
            Request(prompt, n=self.sampling.samples, seed=seed, **given)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        groups = self.engine.generate(requests)
        texts = [[self.tokenizer.decode(answer.tokens) for answer in group] for group in groups]
        rewards = [[self.task.reward(chat, text) for text in said] for chat, said in zip(chats, texts, strict=True)]
        advantages = self._advantage(torch.tensor(rewards, dtype=torch.float32))
        self._step += 1
        self._tell(numbers, groups, texts, rewards, advantages)
        batch = self._batch(prompts, groups, advantages)
        self.wait_seconds += time.perf_counter() - start
        return tuple(part.to(self.device) for part in batch)

    def _places(self) -> range:
        return range(self.rank, self.sampling.examples, self.world_size)

    def _numbers(self) -> list[int]:
        """Of this rank's questions: an epoch is a shuffle of all, and what is left of it does not fill a step."""
        in_epoch = len(self.task) // self.sampling.examples
        epoch, step = divmod(self._step, in_epoch)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self.task))
        return [int(order[step * self.sampling.examples + place]) for place in self._places()]

    def _batch(self, prompts: list[list[int]], groups: list[list[Any]], advantages: Tensor) -> tuple[Tensor, ...]:
        rows = [
            (prompt, answer, float(advantage))
            for prompt, group, own in zip(prompts, groups, advantages, strict=True)
            for answer, advantage in zip(group, own, strict=True)
            if own.any()
        ]
        rows = rows or [(prompts[0], groups[0][0], 0.0)]  # a step needs something to run; nothing is learned from it
        longest = max(len(prompt) + len(answer.tokens) for prompt, answer, _ in rows) - 1
        length = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        length = max(longest, min(length, self.engine.config.max_seq_len))
        inputs, targets = torch.zeros(len(rows), length, dtype=torch.int64), torch.full((len(rows), length), -1)
        weights, chances = torch.zeros(2, len(rows), length)
        for i, (prompt, answer, advantage) in enumerate(rows):
            ids = torch.tensor([*prompt, *answer.tokens])
            inputs[i, : len(ids) - 1] = ids[:-1]
            if advantage:
                here = slice(len(prompt) - 1, len(ids) - 1)
                targets[i, here] = torch.where(torch.tensor(answer.mask) == 1, ids[len(prompt) :], -1)
                weights[i, here], chances[i, here] = advantage, torch.tensor(answer.logprobs)
        return inputs, targets, weights, chances

    def _tell(self, numbers: list, groups: list, texts: list, rewards: list, advantages: Tensor) -> None:
        flat = [reward for own in rewards for reward in own]
        lengths = [len(answer.tokens) for group in groups for answer in group]
        self.told = {
            "rl/reward": float(np.mean(flat)),
            "rl/length": float(np.mean(lengths)),
            "rl/groups_that_teach": float((advantages != 0).any(1).float().mean()),
        }
        if self.file is None:
            return
        with self.file.open("a", encoding="utf-8") as out:
            for number, said, earned, own in zip(numbers, texts, rewards, advantages.tolist(), strict=True):
                question = self.task[number]["messages"][-2]["content"]
                record = {"step": self._step, "example": number, "question": question}
                for text, reward, advantage in zip(said, earned, own, strict=True):
                    line = record | {"answer": text, "reward": reward, "advantage": round(advantage, 4)}
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")

    # ---- where the consumer is ----

    @property
    def progress(self) -> float:
        return self._step / self.steps

    def place(self) -> list[str]:
        """To be told where a loss is not finite."""
        return [f"the questions of step {self._step}"]

    def state_dict(self) -> dict[str, Any]:
        return {"setting": dict(self._setting), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["setting"] != self._setting:
            raise ValueError(f"the saved place is for {state['setting']} and not {self._setting}: start anew")
        self._step = state["step"]

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass
