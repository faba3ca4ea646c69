"""Chat evaluation: problems solved by choosing a letter or by writing an answer, and the loss on conversations.

Answers depend neither on the rank count nor on the problems' order: letters are chosen in batches that are the same for
any rank count, and each written answer has a seed.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.chat import fitted_prompt, reply_parts, text_of
from nanochat.engine import Engine, Request
from nanochat.errors import UserError
from nanochat.evals.bpb import bits_per_byte, log_validation, ratio, sum_rows
from nanochat.gpt import GPT
from nanochat.log import Progress, print0
from nanochat.metrics import keep_figures
from nanochat.models import as_written
from nanochat.packing import ChatLoader
from nanochat.paths import write_jsonl
from nanochat.protocols import Conversation, Conversations, OpenTasks, Task
from nanochat.run import Trainer
from nanochat.runtime import Runtime, in_halves
from nanochat.settings import AnswerSettings
from nanochat.stages import MEANS, mean_name
from nanochat.statistics import Estimate, average, mean_estimate
from nanochat.tokenizer import Tokenizer
from nanochat.train import Evaluation, State

# A call of the calculator and its result in the text of an answer.
CALL = re.compile(r"<\|python_start\|>(.*?)<\|python_end\|><\|output_start\|>(.*?)<\|output_end\|>")
AnyTask = TypeVar("AnyTask", bound=Task)
LETTER_BATCH = 64  # prompts per forward pass where letters are chosen, at most
LETTER_TOKENS = 16_384  # tokens of such a pass, padding included, if there is more than one prompt


@dataclass(frozen=True)
class Problem:
    """A conversation with its prompt as tokens."""

    conversation: Conversation
    prompt: list[int]
    record: dict[str, Any]  # what is known of it before it is answered


Answers = Iterator[tuple[Problem, list[dict[str, Any]]]]  # this rank's problems with their completions


@dataclass(frozen=True)
class ChatScore:
    """One task's result."""

    pass_at: dict[int, Estimate]  # k -> probability that one in k answers is right, for k up to the samples
    baseline: float  # accuracy when guessing
    records: list[dict[str, Any]]  # for each problem: the prompt, the right answer, and all completions with verdicts
    repeats: int = 1  # runs that the completions of each problem come from, one after the other

    @property
    def accuracy(self) -> Estimate:
        return self.pass_at[1]

    @property
    def repeat_error(self) -> float:
        """The standard error of the accuracy, from the accuracies of the runs: nan for one run."""
        rows = [[completion["right"] for completion in record["completions"]] for record in self.records]
        right = torch.tensor(rows, dtype=torch.float64).view(len(rows), self.repeats, -1)  # last dimension: samples
        return mean_estimate(right.mean((0, 2)).tolist()).stderr

    def by_category(self) -> list[list[Any]]:
        """Return rows [category, problems, accuracy, standard error]; none for a task without categories."""
        groups = {}
        for record in self.records:
            if record["category"]:
                groups.setdefault(record["category"], []).append(record)
        return [[name, len(records), *_pass_at(records)[1]] for name, records in groups.items()]


def evaluate_task(
    task: Task,
    model: GPT,
    tokenizer: Tokenizer,
    runtime: Runtime,
    settings: AnswerSettings,
    label: str = "chat",
    path: Path | None = None,
    engine: Engine | None = None,
) -> ChatScore:
    """Return a task's score. All ranks call this; each answers a part, and all get the same score.

    path: file for the records. engine: writes the answers, by default one for this task alone.
    """
    problems = _prepare_problems(task, model.config.max_seq_len, tokenizer, settings, label)
    if not problems:
        raise UserError(f"{label}: this split of the task has no problems, use another task")
    if task.kind == "categorical":
        answers = _choose_letters(problems, model, tokenizer, runtime)
    else:
        answers = _write_answers(problems, engine or Engine(model, tokenizer), tokenizer, runtime, settings)
    answered = []
    progress = Progress()
    for answer in answers:
        answered.append(answer)
        done = min(len(answered) * runtime.world_size / len(problems), 1)  # of all ranks, about
        progress.update(f"{label}: {done:.0%} of {len(problems)} problems", done)
    # All texts are judged in one call, which runs programs side by side.
    texts = [(problem.conversation, answer["text"]) for problem, completions in answered for answer in completions]
    verdicts = iter(task.evaluate_all(texts))
    records = [
        problem.record | {"completions": [completion | {"right": bool(next(verdicts))} for completion in completions]}
        for problem, completions in answered
    ]
    # Ranks have every n-th problem or batch: sorted, the records do not depend on the rank count.
    records = sorted(chain(*runtime.all_gather(records)), key=lambda record: record["problem"])
    if path and runtime.rank == 0:
        write_jsonl(path, records)
    repeats = 1 if task.kind == "categorical" else settings.repeats
    return ChatScore(_pass_at(records), task.data.baseline, records, repeats)


def sample_answers(tasks: Mapping[str, Task], scores: Mapping[str, ChatScore]) -> list[list[str]]:
    """Return three rows [task, question, answer, yes or no] with first answers to problems of tasks without letters."""
    # The last tasks first: in a model of a world these are what a person would ask.
    written = [name for name in reversed(list(scores)) if tasks[name].kind == "generative"]
    rows = []
    # The first problem of each task, then the second of each.
    for number, name in product(range(3), written):
        for record in scores[name].records[number : number + 1]:  # none: the task has fewer
            *messages, _ = tasks[name][number]["messages"]
            question = " / ".join(map(text_of, messages))
            answer = record["completions"][0]
            # Characters that fit into the report card.
            texts = [shortened(text) for text in (question, CALL.sub(r"[\1=\2]", answer["text"]))]
            rows.append([name, *texts, "yes" if answer["right"] else "no"])
    return rows[:3]


def shortened(text: str, most: int = 300) -> str:
    """Return the words of a text on one line, up to so many characters; a long text without blanks is cut anywhere."""
    line = " ".join(text.split())
    words = shorten(line, most)
    return words if len(line) <= most or len(words) > most // 2 else line[:most]


def mean_scores(scores: dict[str, ChatScore]) -> dict[str, Estimate]:
    """Return ChatCORE and World mean, over centered accuracies, by display name; a mean without scores is left out."""
    found = {}
    for mean, tasks in MEANS.items():
        counted = [score.accuracy.centered(score.baseline) for name, score in scores.items() if name in tasks]
        if counted:
            found[mean_name(mean, scores)] = average(counted)
    return found


def pass_probability(samples: int, right: int, k: int) -> float:
    """Return the unbiased pass@k (Chen et al. 2021) for so many right answers among the samples."""
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def _pass_at(records: list[dict[str, Any]]) -> dict[int, Estimate]:
    # Every problem has the same number of samples.
    samples = len(records[0]["completions"])
    counts = [sum(completion["right"] for completion in record["completions"]) for record in records]
    return {k: mean_estimate([pass_probability(samples, count, k) for count in counts]) for k in range(1, samples + 1)}


def _prepare_problems(
    task: Task, context: int, tokenizer: Tokenizer, settings: AnswerSettings, label: str
) -> list[Problem]:
    """Return the problems with prompts that leave room for an answer, but take at least half of the context."""
    # Letters need no room: they are read from the last position.
    total = min(len(task), settings.max_problems or len(task))
    opening = tokenizer.letter_prompt([])
    answer_tokens = len(opening) if task.kind == "categorical" else settings.max_new_tokens
    problems = []
    for number in range(total):
        conversation = task[number]
        prompt, cut = fitted_prompt(conversation, tokenizer, context, answer_tokens)
        if task.kind == "categorical":
            prompt = tokenizer.letter_prompt(prompt)[-context:]
        record = {
            "problem": number,
            "prompt": tokenizer.decode(prompt),
            "cut": cut,  # the prompt was too long for the context, and lost its beginning
            "answer": conversation["messages"][-1]["content"],
            "category": conversation.get("category"),  # None: the task has no categories
        }
        problems.append(Problem(conversation, prompt, record))
    shortened = sum(problem.record["cut"] for problem in problems)
    if answer_tokens >= context:
        print0(f"{label}: answers end with the context of {context} tokens, before {answer_tokens} new ones")
    if shortened:
        print0(f"{label}: {shortened} of {total} prompts are longer than the context, and lose their beginning")
    return problems


# ---- letters ----


def _choose_letters(problems: list[Problem], model: GPT, tokenizer: Tokenizer, runtime: Runtime) -> Answers:
    """Answer problems in batches, one forward pass each; ranks take batches in turn."""
    for batch in letter_batches(problems)[runtime.rank :: runtime.world_size]:
        logits = in_halves(lambda part: last_logits(model, part), [problem.prompt for problem in batch])
        for problem, row in zip(batch, torch.cat(list(logits)), strict=True):
            letters = problem.conversation["letters"]
            tokens = tokenizer.letter_tokens(letters)
            yield problem, [{"text": letters[int(row[tokens].argmax())]}]


def letter_batches(problems: list[Problem]) -> list[list[Problem]]:
    """Return the problems in batches of prompts that are about as long.

    The longest come first, so that lack of memory shows at once.
    """
    batches: list[list[Problem]] = []
    most = 0  # prompts in the last batch
    for problem in sorted(problems, key=lambda problem: len(problem.prompt), reverse=True):
        if not batches or len(batches[-1]) == most:
            batches.append([])
            most = max(min(LETTER_TOKENS // len(problem.prompt), LETTER_BATCH), 1)
        batches[-1].append(problem)
    return batches


@torch.no_grad()
def last_logits(model: GPT, prompts: list[list[int]]) -> Tensor:
    """Return the logits after each prompt, (prompts, vocabulary) on the host."""
    # Padding is on the right, where no token before it attends to it.
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    with as_written(model):  # batches differ in length
        states = model.hidden(ids.to(model.device))[torch.arange(len(prompts)), last]
        return model.logits(states).cpu()


# ---- written answers ----


def problem_seed(seed: int, problem: int) -> int:
    """Return the seed of a problem's samples, whatever runs beside it; no sample of another seed draws the same."""
    return int(np.random.SeedSequence((seed, problem)).generate_state(1, np.uint64)[0])


def _write_answers(
    problems: list[Problem], engine: Engine, tokenizer: Tokenizer, runtime: Runtime, settings: AnswerSettings
) -> Answers:
    """Answer problems with the engine, all at once; yield each problem when its last sample has ended."""
    own = problems[runtime.rank :: runtime.world_size]
    requests = [
        Request(
            problem.prompt,
            settings.max_new_tokens,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            seed=problem_seed(settings.seed, problem.record["problem"]),
            n=settings.num_samples * settings.repeats,
        )
        for problem in own
    ]
    for number, samples in engine.finished(requests):
        answers = [
            {
                "text": tokenizer.decode(sample.tokens),
                "parts": reply_parts(sample.tokens, tokenizer),
                "reason": sample.reason,
            }
            for sample in samples
        ]
        yield own[number], answers


def common_tasks(tasks: Mapping[str, AnyTask], runtime: Runtime) -> dict[str, AnyTask]:
    """Return the tasks with problems that all ranks have found, alike: each looks into the files of its machine."""
    found = runtime.all_gather({name: [len(task), sorted(task.hashes().values())] for name, task in tasks.items()})
    shared = {name: task for name, task in tasks.items() if all(one.get(name) == found[0].get(name) for one in found)}
    for name in dict.fromkeys(name for one in found for name in one if name not in shared):
        print0(f"tasks: {name} is left out: it is not the same on all machines")
    for name in [name for name, task in shared.items() if not len(task)]:
        print0(f"tasks: {name} is left out: this split has no problems")
        del shared[name]
    return shared


# ---- evaluation during training ----


def task_scores(trainer: Trainer, open_tasks: OpenTasks, at_start: bool = False) -> list[Evaluation]:
    """Return the evaluation that scores tasks during fine-tuning; the config is TaskScoreSettings.

    If the config names no tasks, only those answered by a letter are scored: they cost one forward pass a problem.
    open_tasks: that of `tasks`.
    """
    config = trainer.config
    if config.eval_metrics_every < 0:
        return []
    names = config.eval_metrics_tasks
    tasks = common_tasks(open_tasks(names, tokenizer=trainer.tokenizer_tag), trainer.runtime)
    scored = {name: task for name, task in tasks.items() if names or task.kind == "categorical"}
    if not scored:
        return []
    settings = AnswerSettings(max_problems=config.eval_metrics_max_problems)

    def score(state: State) -> None:
        scores = {
            name: evaluate_task(task, trainer.model, trainer.tokenizer, trainer.runtime, settings, name)
            for name, task in scored.items()
        }
        found = {name: score.accuracy for name, score in scores.items()} | mean_scores(scores)
        keep_figures(trainer.log, state, "chat", {f"chat/{name}": estimate for name, estimate in found.items()})

    return [Evaluation(config.eval_metrics_every, score, at_start)]


def log_figures(trainer: Trainer, measure: Callable[[], dict[str, Estimate]]) -> Evaluation:
    """Return the evaluation that logs the figures of `measure` every --eval-every steps, also before the first one."""

    def log(state: State) -> None:
        found = measure()
        keep_figures(trainer.log, state, "eval", {f"eval/{name}": estimate for name, estimate in found.items()})

    return Evaluation(trainer.config.eval_every, log, at_start=True)


# ---- validation on conversations ----


def chat_validation(trainer: Trainer, conversations: Conversations, supervise: str) -> list[Evaluation]:
    """Return the evaluation for loss per supervised token, and bits per byte, on conversations.

    The rows do not depend on the number of ranks. The config is ChatTuneSettings.
    """
    config = trainer.config
    if config.eval_every < 0:
        return []
    tokens = config.eval_tokens
    if tokens < 0:  # little work beside training: as much as validation on text, with about 4 bytes in a token
        tokens = trainer.runtime.validation_bytes // 4
    length = config.max_seq_len
    most = max(1, tokens // length)
    inputs, targets = first_rows(conversations, trainer.tokenizer, supervise, length, most)
    if (targets < 0).all():
        raise UserError(f"no conversation for validation fits into {length} tokens: add --eval-every=-1")
    lengths = torch.from_numpy(trainer.tokenizer.token_lengths()).long()
    weights = torch.stack([torch.ones_like(lengths), lengths])  # a token counts once, or as its bytes

    def measure() -> dict[str, Estimate]:
        losses, counted = sum_rows(trainer.model, inputs, targets, weights, trainer.device_rows, trainer.runtime)
        return {"val/loss": ratio(losses), "val/bpb": bits_per_byte(counted)}

    return [log_validation(trainer, measure)]


def first_rows(
    conversations: Conversations,
    tokenizer: Tokenizer,
    supervise: str,
    length: int,
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, (rows, length) each, for an epoch's first rows, at most `most`."""
    rows = []  # inputs and targets, (1, length) each
    with ChatLoader(conversations, tokenizer, 1, length, supervise=supervise, part="validation part") as source:
        while len(rows) < most and source.epoch < 1:
            rows.append(next(source))
    inputs, targets = map(torch.cat, zip(*rows, strict=True))
    return inputs, targets
