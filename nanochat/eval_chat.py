"""Chat evaluation: how many problems of a task a model solves, by picking a letter or by writing an answer.

What a problem gets depends neither on the number of ranks nor on the order of the others: letters are picked in batches
that are the same for any number of ranks, and what is written has a seed of its own.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import render_prompt
from nanochat.engine import Request
from nanochat.log import Progress, print0

AT_ONCE = 256  # problems that the engine gets together: enough to keep its slots filled, few enough to see progress


@dataclass(frozen=True)
class Options:
    """batch_size: rows at once where letters are picked. max_problems: the first so many, 0: all."""

    temperature: float = 0.0
    top_k: int = 0
    num_samples: int = 1
    max_new_tokens: int = 512
    batch_size: int = 64
    max_problems: int = 0
    seed: int = 0


class Estimate(NamedTuple):
    value: float
    stderr: float


@dataclass(frozen=True)
class ChatScore:
    """pass_at: k -> how often one of k answers is right, k up to the samples of a problem. records: of each problem the
    question, the right answer, whether its prompt was cut, and all completions with their verdicts.
    """

    pass_at: dict[int, Estimate]
    baseline: float
    records: list[dict]

    @property
    def accuracy(self) -> Estimate:
        """How often an answer is right."""
        return self.pass_at[1]


def evaluate(
    task: Any, model: Any, engine: Any, tokenizer: Any, runtime: Any, options: Options, label: str = "chat"
) -> ChatScore:
    """All ranks call it, each answers its share, and all get the whole score; `engine` may be None for letters."""
    count = min(len(task), options.max_problems or len(task))
    total = -(-count // runtime.world_size)
    answers = _pick_letters if task.kind == "categorical" else _write
    records, right = [], 0
    progress = Progress(label, "problems")
    for number, conversation, cut, completions in answers(task, count, model, engine, tokenizer, runtime, options):
        for completion in completions:
            completion["right"] = bool(task.evaluate(conversation, completion["text"]))
        right += sum(completion["right"] for completion in completions) / len(completions)
        *_, question, answer = (message["content"] for message in conversation["messages"])
        records.append({"problem": number, "question": question, "answer": answer, "cut": cut})
        records[-1]["completions"] = completions
        progress.update(len(records), total, f"right {right / len(records):.1%}")
    progress.close()
    shares = runtime.everyones(records)
    records = sorted((record for share in shares for record in share), key=lambda record: record["problem"])
    if lost := sum(record["cut"] for record in records):
        print0(f"{label}: {lost:,} of {count:,} prompts were longer than the context and lost their beginning")
    verdicts = [[completion["right"] for completion in record["completions"]] for record in records]
    samples = len(verdicts[0])
    pass_at = {k: estimate([chance(samples, sum(v), k) for v in verdicts]) for k in range(1, samples + 1)}
    return ChatScore(pass_at, task.baseline, records)


def chance(samples: int, right: int, k: int) -> float:
    """That k of the samples, drawn without putting back, have a right one: unbiased for pass@k (Chen et al. 2021)."""
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def estimate(values: list[float]) -> Estimate:
    """Their mean; the error takes them as a sample of more such values."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return Estimate(mean, math.sqrt(squares / (len(values) - 1) / len(values)) if len(values) > 1 else math.nan)


def chat_core(scores: Iterable[ChatScore]) -> Estimate:
    """The mean over tasks of accuracies, moved and scaled so that guessing gives 0 and knowing all gives 1."""
    centred = [[(score.accuracy.value - score.baseline), score.accuracy.stderr, 1 - score.baseline] for score in scores]
    value = sum(above / span for above, _, span in centred) / len(centred)
    return Estimate(value, math.hypot(*(stderr / span for _, stderr, span in centred)) / len(centred))


# ---- the two ways to answer: (number, conversation, whether the prompt was cut, completions) of this rank's problems


def _pick_letters(
    task: Any, count: int, model: Any, engine: Any, tokenizer: Any, runtime: Any, options: Options
) -> Iterator[tuple[int, dict, bool, list[dict]]]:
    """One forward pass for many problems of about the same length, and one row of logits for each."""
    problems = [(number, task[number]) for number in range(count)]
    problems = [(*problem, *_prompt(problem[1], tokenizer, model.config.max_seq_len)) for problem in problems]
    problems.sort(key=lambda problem: len(problem[-1]), reverse=True)  # the batch that needs most memory is the first
    batches = [problems[i : i + options.batch_size] for i in range(0, count, options.batch_size)]
    for batch in batches[runtime.rank :: runtime.world_size]:
        letters = [letter_ids(conversation["letters"], tokenizer) for _, conversation, *_ in batch]
        picked = pick_letters(model, [prompt for *_, prompt in batch], letters, runtime.device)
        for (number, conversation, cut, _), choice in zip(batch, picked, strict=True):
            yield number, conversation, cut, [{"text": conversation["letters"][choice]}]


@torch.no_grad()
def pick_letters(model: Any, prompts: list[list[int]], letters: list[list[int]], device: torch.device) -> list[int]:
    """For each prompt the number of the likeliest of its letters as the next token.

    Rows are padded on the right, where nothing that stands before looks.
    """
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True).to(device)
    allowed = pad_sequence([torch.tensor(row) for row in letters], batch_first=True, padding_value=-1).to(device)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    logits = model.logits(model.hidden(ids)[torch.arange(len(prompts), device=device), last])
    scores = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed < 0, -math.inf)
    return scores.argmax(1).tolist()


def letter_ids(letters: Iterable[str], tokenizer: Any) -> list[int]:
    """The token of each letter."""
    ids = [tokenizer.encode(letter) for letter in letters]
    for letter, tokens in zip(letters, ids, strict=True):
        if len(tokens) != 1:
            raise ValueError(f"the letter {letter} is {len(tokens)} tokens and not one: name choices by single tokens")
    return [token for [token] in ids]


def _write(
    task: Any, count: int, model: Any, engine: Any, tokenizer: Any, runtime: Any, options: Options
) -> Iterator[tuple[int, dict, bool, list[dict]]]:
    """By the engine; an answer gets what is left of the context, half of it at least."""
    context = model.config.max_seq_len
    room = max(context - options.max_new_tokens, context // 2)
    settings = {"temperature": options.temperature, "top_k": options.top_k, "n": options.num_samples}
    mine = range(runtime.rank, count, runtime.world_size)
    for first in range(0, len(mine), AT_ONCE):
        problems = [(number, task[number]) for number in mine[first : first + AT_ONCE]]
        problems = [(*problem, *_prompt(problem[1], tokenizer, room)) for problem in problems]
        seeds = [(options.seed << 32) + number for number, *_ in problems]
        requests = [
            Request(prompt, options.max_new_tokens, seed=seed, **settings)
            for (*_, prompt), seed in zip(problems, seeds, strict=True)
        ]
        for (number, conversation, cut, _), found in zip(problems, engine.generate(requests), strict=True):
            texts = [{"text": tokenizer.decode(one.tokens), "reason": one.reason} for one in found]
            yield number, conversation, cut, texts


def _prompt(conversation: dict, tokenizer: Any, room: int) -> tuple[bool, list[int]]:
    """Whether it had to be cut, and the prompt; what is lost stands at the beginning of the user's text."""
    ids = render_prompt(conversation, tokenizer)
    return len(ids) > room, ids if len(ids) <= room else ids[:2] + ids[len(ids) - room + 2 :]
