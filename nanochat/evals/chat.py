"""Chat evaluation: how many problems of a task a model solves, by picking a letter or by writing an answer.

What a problem gets depends neither on the number of ranks nor on the order of the others: letters are picked in batches
that are the same for any number of ranks, and what is written has a seed of its own.
"""

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import fitted_prompt
from nanochat.engine import Request
from nanochat.log import Progress, print0
from nanochat.paths import write_text
from nanochat.stages import CHAT, core_name

AT_ONCE = 20  # problems whose answers are judged together; programs run side by side, one a core at most


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


class Problem(NamedTuple):
    """lost: turns that its prompt leaves out, as the whole would not fit."""

    number: int
    conversation: dict
    prompt: list[int]
    lost: int


Answered = Iterator[tuple[Problem, list[dict]]]  # this rank's problems with their completions


class Estimate(NamedTuple):
    value: float
    stderr: float


@dataclass(frozen=True)
class ChatScore:
    """pass_at: k -> how often one of k answers is right, k up to the samples of a problem. records: of each problem the
    prompt as the model read it, the right answer, and all completions with their verdicts.
    """

    pass_at: dict[int, Estimate]
    baseline: float
    records: list[dict]

    @property
    def accuracy(self) -> Estimate:
        return self.pass_at[1]


def evaluate(
    task: Any, model: Any, engine: Any, tokenizer: Any, runtime: Any, options: Options, label="chat", path=None
) -> ChatScore:
    """All ranks call it, each answers its share, and all get the whole score; `engine` may be None for letters.

    path: of a file for the records. Until all are there, those of each rank are beside it, in the order they came in.
    """
    total, context = min(len(task), options.max_problems or len(task)), model.config.max_seq_len
    by_letter = task.kind == "categorical"
    room = context, 0 if by_letter else options.max_new_tokens
    chats = ((number, task[number]) for number in range(total))
    problems = [Problem(number, chat, *fitted_prompt(chat, tokenizer, *room)) for number, chat in chats]
    if lost := [problem.lost for problem in problems if problem.lost]:
        about = f"{label}: {len(lost):,} of {total:,} prompts are longer than the context"
        print0(f"{about} and lose {sum(lost):,} turns, or their beginning")
    records, right, progress = [], 0, Progress(label, "problems")
    answer, source = (_pick_letters, model) if by_letter else (_write, engine)
    answers = answer(problems, source, tokenizer, runtime, options)
    with _keeper(path and path.with_suffix(f".part-{runtime.rank}.jsonl")) as keep:
        while answered := list(itertools.islice(answers, AT_ONCE)):
            said = [(problem.conversation, one["text"]) for problem, written in answered for one in written]
            verdicts = iter(task.evaluate_all(said))
            for problem, completions in answered:
                for completion in completions:
                    completion["right"] = bool(next(verdicts))
                right += sum(completion["right"] for completion in completions) / len(completions)
                about = {"problem": problem.number, "prompt": tokenizer.decode(problem.prompt), "cut": problem.lost > 0}
                about["answer"] = problem.conversation["messages"][-1]["content"]
                records.append({**about, "completions": completions})
                keep(records[-1])
            progress.update(len(records), -(-total // runtime.world_size), f"right {right / len(records):.1%}")
        progress.close()
        records = sorted(itertools.chain(*runtime.everyones(records)), key=lambda record: record["problem"])
        if path and runtime.rank == 0:
            write_text(path, "".join(map(_line, records)))
    counts = [sum(completion["right"] for completion in record["completions"]) for record in records]
    samples = len(records[0]["completions"])
    pass_at = {k: estimate([chance(samples, count, k) for count in counts]) for k in range(1, samples + 1)}
    return ChatScore(pass_at, task.baseline, records)


@contextmanager
def _keeper(path: Path | None) -> Iterator[Callable[[dict], None]]:
    """A function that writes a record to a file at once, which is there until all is done: a killed run leaves it."""
    if path is None:
        yield lambda record: None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        yield lambda record: print(_line(record), end="", file=file, flush=True)
    path.unlink()


def _line(record: dict) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def chance(samples: int, right: int, k: int) -> float:
    """That k of the samples, drawn without putting back, have a right one: unbiased for pass@k (Chen et al. 2021)."""
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def estimate(values: list[float]) -> Estimate:
    """Their mean; the error takes them as a sample of more such values."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), spread / math.sqrt(len(values)))


def core_of(scores: dict[str, ChatScore]) -> dict[str, Estimate]:
    """The mean of those that count for ChatCORE, by its name; nothing where none does."""
    counted = [score for name, score in scores.items() if name in CHAT]
    return {core_name(scores): chat_core(counted)} if counted else {}


def chat_core(scores: Iterable[ChatScore]) -> Estimate:
    """The mean over tasks of accuracies, moved and scaled so that guessing gives 0 and knowing all gives 1."""
    centred = [[(score.accuracy.value - score.baseline), score.accuracy.stderr, 1 - score.baseline] for score in scores]
    value = sum(above / span for above, _, span in centred) / len(centred)
    return Estimate(value, math.hypot(*(stderr / span for _, stderr, span in centred)) / len(centred))


def _pick_letters(problems: list[Problem], model: Any, tokenizer: Any, runtime: Any, options: Options) -> Answered:
    """One forward pass for many problems of about the same length, and one row of logits for each."""
    problems = sorted(problems, key=lambda problem: len(problem.prompt), reverse=True)  # most memory first
    for start in range(0, len(problems), options.batch_size)[runtime.rank :: runtime.world_size]:
        batch = problems[start : start + options.batch_size]
        letters = [problem.conversation["letters"] for problem in batch]
        ids = [letter_ids(row, tokenizer) for row in letters]
        picked = pick_letters(model, [problem.prompt for problem in batch], ids, runtime.device)
        texts = [row[choice] for row, choice in zip(letters, picked, strict=True)]
        yield from ((problem, [{"text": text}]) for problem, text in zip(batch, texts, strict=True))


@torch.no_grad()
def pick_letters(model: Any, prompts: list[list[int]], letters: list[list[int]], device: torch.device) -> list[int]:
    """The number of each prompt's likeliest letter; rows are padded on the right, where nothing before them looks."""
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True).to(device)
    allowed = pad_sequence([torch.tensor(row) for row in letters], batch_first=True, padding_value=-1).to(device)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    logits = model.logits(model.hidden(ids)[torch.arange(len(prompts), device=device), last])
    scores = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed < 0, -math.inf)
    return scores.argmax(1).tolist()


def letter_ids(letters: Iterable[str], tokenizer: Any) -> list[int]:
    """The token of each letter."""
    ids = [tokenizer.encode(letter) for letter in letters]
    if any(len(tokens) != 1 for tokens in ids):
        raise ValueError(f"{' '.join(letters)} are not single tokens, name the choices by letters that are")
    return [token for [token] in ids]


def _write(problems: list[Problem], engine: Any, tokenizer: Any, runtime: Any, options: Options) -> Answered:
    """By the engine, all at once; each problem's seed is its own."""
    settings = {"temperature": options.temperature, "top_k": options.top_k, "n": options.num_samples}
    mine = problems[runtime.rank :: runtime.world_size]
    requests = [
        Request(it.prompt, options.max_new_tokens, seed=(options.seed << 32) + it.number, **settings) for it in mine
    ]
    tokens, found = defaultdict(list), [[{}] * options.num_samples for _ in mine]
    for event in engine.stream(requests):
        where = event.request, event.sample
        if event.token is not None:
            tokens[where].append(event.token)
            continue
        text = tokenizer.decode(tokens.pop(where, []))
        found[event.request][event.sample] = {"text": text, "reason": event.reason}
        if all(found[event.request]):
            yield mine[event.request], found[event.request]
