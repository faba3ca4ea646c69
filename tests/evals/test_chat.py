"""Chat evaluation against plain twins: one problem at a time, every sample counted by hand."""

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from bundles import one_process
from forks import Forked
from model_checks import check_letters, picked_plainly
from models import CONFIGS, limit_memory, model_for

from nanochat.chat import render_prompt
from nanochat.engine import Engine, Event, samples_of
from nanochat.errors import UserError
from nanochat.evals import chat
from nanochat.evals.chat import ChatScore, common_tasks, evaluate_task, mean_scores, pass_probability
from nanochat.paths import read_jsonl
from nanochat.runtime import setup
from nanochat.settings import AnswerSettings
from nanochat.statistics import Estimate, mean_estimate
from nanochat.tokenizer import Tokenizer
from tasks import TASKS

TEXTS = ["Who lives in the town? Reply with nothing but the letter of the right choice. 12 + 34 = 46 #### " * 3]


@pytest.fixture
def hub(fake_hub, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(fake_hub))
    return fake_hub


def make_model(max_seq_len: int = 512):
    tokenizer = Tokenizer.train(TEXTS, 300)
    return model_for(tokenizer, depth=2, max_seq_len=max_seq_len).requires_grad_(False), tokenizer


class Scripted:
    """Stands in for the engine and writes the texts of answer(request), one per sample."""

    finished = Engine.finished

    def __init__(self, tokenizer, answer) -> None:
        self.tokenizer, self.answer, self.requests = tokenizer, answer, []

    def stream(self, requests):
        """Samples and their tokens come in any order, as the engine's do."""
        self.requests += requests
        texts = [text for request in requests for text in self.answer(request)]
        left = dict(zip(samples_of(requests), map(self.tokenizer.encode, texts), strict=True))
        while left:
            sample = random.choice(list(left))
            if left[sample]:
                yield Event(sample, left[sample].pop(0))
            else:
                del left[sample]
                yield Event(sample, None, reason="stop")


def test_pass_at_k_is_counted_over_all_draws_and_chat_core_by_hand() -> None:
    for samples in range(1, 7):
        for right in range(samples + 1):
            verdicts = [True] * right + [False] * (samples - right)
            for k in range(1, samples + 1):
                draws = list(itertools.combinations(verdicts, k))
                assert pass_probability(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    # ChatCORE by hand.
    scores = {
        "ARC-Easy": ChatScore({1: Estimate(0.4, 0.03)}, 0.25, []),
        "GSM8K": ChatScore({1: Estimate(0.5, 0.04)}, 0.0, []),
        "KMMLU": ChatScore({1: Estimate(0.9, 0.01)}, 0.0, []),  # does not count
    }
    assert mean_estimate([True, False, True, True]) == pytest.approx((0.75, 0.25))  # √(0.75 × 0.25 / 3)
    expected = (0.15 / 0.75 + 0.5) / 2, math.sqrt((0.03 / 0.75) ** 2 + 0.04**2) / 2
    assert mean_scores(scores) == {"ChatCORE (2 of 6 tasks)": pytest.approx(expected)}
    assert mean_scores({"KMMLU": scores["KMMLU"]}) == {}


def test_an_answer_without_blanks_is_shown() -> None:
    assert chat.shortened("a  b\nc") == "a b c"
    assert chat.shortened("word " * 100, most=20) == "word word word [...]"
    for text in ("가" * 400, f"So: {'가' * 400}"):
        assert chat.shortened(text, most=300) == text[:300]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_picks_what_each_prompt_picks_alone(name) -> None:
    check_letters(name)


def test_a_task_of_letters(hub, monkeypatch) -> None:
    model, tokenizer = make_model()
    task = TASKS["ARC-Easy"]()
    monkeypatch.setattr(chat, "LETTER_BATCH", 7)
    limit_memory(monkeypatch, model, 3)
    options = AnswerSettings(max_problems=40)
    score = evaluate_task(task, model, tokenizer, one_process(), options)
    verdicts = []
    for record, conversation in zip(score.records, task, strict=False):
        ids = [tokenizer.encode(letter)[0] for letter in conversation["letters"]]
        letter = "ABCDE"[picked_plainly(model, render_prompt(conversation, tokenizer), ids)]
        answer = conversation["messages"][1]["content"]
        verdicts.append(letter == answer)
        read = tokenizer.decode(render_prompt(conversation, tokenizer))
        assert record == {
            "problem": len(verdicts) - 1,
            "prompt": read,
            "answer": answer,
            "cut": False,
            "category": None,
            "completions": [{"text": letter, "right": letter == answer}],
        }
    assert 0 < sum(verdicts) < len(verdicts) == 40
    assert score.pass_at == {1: mean_estimate(verdicts)}
    assert score.baseline == 0.25
    monkeypatch.setattr(type(task), "__len__", lambda _: 0)  # as of a split that no word of a small text falls into
    with pytest.raises(UserError, match=r"^chat: this split of the task has no problems, use another task$"):
        evaluate_task(task, model, tokenizer, one_process(), options)


def test_batches_of_letters_have_a_limit_of_tokens(monkeypatch) -> None:
    """64 prompts of 2,048 tokens took 18 GB with a model of 135 M."""
    monkeypatch.setattr(chat, "LETTER_BATCH", 4)
    monkeypatch.setattr(chat, "LETTER_TOKENS", 100)
    lengths = [30, 8, 120, 25, 9, 40, 7, 6, 101, 5]
    problems = [chat.Problem({"messages": []}, [0] * length, {}) for length in lengths]
    batches = chat.letter_batches(problems)
    assert [[len(one.prompt) for one in batch] for batch in batches] == [[120], [101], [40, 30], [25, 9, 8, 7], [6, 5]]


@pytest.mark.parametrize(("name", "context", "room"), [("ARC-Easy", 96, 96), ("GSM8K", 50, 25)])
def test_a_prompt_longer_than_the_context_loses_its_beginning(name, context, room, hub, capsys) -> None:
    model, tokenizer = make_model(max_seq_len=context)
    task = TASKS[name]()
    prompts = [render_prompt(task[number], tokenizer) for number in range(20)]
    engine = Scripted(tokenizer, lambda request: [""])
    options = AnswerSettings(max_new_tokens=30, max_problems=20)
    score = evaluate_task(task, model, tokenizer, one_process(), options, name, engine=engine)
    cut = [len(prompt) > room for prompt in prompts]
    assert any(cut)
    assert [record["cut"] for record in score.records] == cut
    assert f"{name}: {sum(cut)} of 20 prompts are longer than the context" in capsys.readouterr().out
    assert all(len(request.tokens) <= room for request in engine.requests)


def test_what_is_written_is_judged_and_kept(hub) -> None:
    model, tokenizer = make_model()
    task = TASKS["GSM8K"]()
    conversations = [task[number] for number in range(9)]
    numbers = [one["messages"][1]["content"][-1]["text"].split("#### ")[1] for one in conversations]
    right = [0, 3, 1, 2, 0, 3, 3, 1, 0]  # of three samples
    texts = [
        ["so\n#### " + number] * count + ["#### 0"] * (3 - count) for number, count in zip(numbers, right, strict=True)
    ]
    prompts = [render_prompt(conversation, tokenizer) for conversation in conversations]
    engine = Scripted(tokenizer, lambda request: texts[prompts.index(list(request.tokens))])
    options = AnswerSettings(
        temperature=0.7, top_k=9, num_samples=3, max_new_tokens=50, max_problems=9, seed=4, top_p=0.8
    )
    score = evaluate_task(task, model, tokenizer, one_process(), options, engine=engine)
    assert score.pass_at.keys() == {1, 2, 3}
    for k in (1, 2, 3):
        assert score.pass_at[k] == mean_estimate([pass_probability(3, count, k) for count in right])
    assert score.accuracy.value == pytest.approx(sum(right) / 27)
    for record, wanted, count in zip(score.records, texts, right, strict=True):
        verdicts = [True] * count + [False] * (3 - count)
        for completion, text, verdict in zip(record["completions"], wanted, verdicts, strict=True):
            content = [{"type": "text", "text": text}]
            assert completion == {"text": text, "parts": content, "reason": "stop", "right": verdict}
    for request in engine.requests:
        assert (request.max_new_tokens, request.temperature, request.top_k, request.n) == (50, 0.7, 9, 3)
        assert request.top_p == 0.8
    assert len({request.seed for request in engine.requests}) == 9


def test_repeats_are_runs_with_samples_of_their_own(hub) -> None:
    model, tokenizer = make_model()
    task = TASKS["GSM8K"]()
    # The most random words may be the answer: a text is right if its length is even.
    task.evaluate_all = lambda answers: [len(text) % 2 == 0 for _, text in answers]
    options = AnswerSettings(
        temperature=1.0, top_k=0, top_p=0.9, num_samples=2, max_new_tokens=6, max_problems=8, seed=4
    )
    score = evaluate_task(task, model, tokenizer, one_process(), replace(options, repeats=3))
    rows = [[one["right"] for one in record["completions"]] for record in score.records]
    accuracies = [sum(sum(row[first : first + 2]) for row in rows) / 16 for first in (0, 2, 4)]
    assert len(set(accuracies)) > 1
    spread = math.sqrt(sum((one - score.accuracy.value) ** 2 for one in accuracies) / 2)
    assert score.repeat_error == pytest.approx(spread / math.sqrt(3))
    shares = [sum(one["right"] for one in record["completions"]) / 6 for record in score.records]
    assert score.accuracy == pytest.approx(mean_estimate(shares))
    assert score.pass_at.keys() == {1, 2, 3, 4, 5, 6}
    letters = evaluate_task(TASKS["MMLU"](), model, tokenizer, one_process(), replace(options, repeats=3))
    assert {len(record["completions"]) for record in letters.records} == {1}
    assert math.isnan(letters.repeat_error)


def test_samples_of_unlike_seeds_draw_unlike_numbers() -> None:
    drawn = {
        (seed, problem, sample): np.random.default_rng([chat.problem_seed(seed, problem), sample]).random()
        for seed in range(5)
        for problem in range(5)
        for sample in range(5)
    }
    assert len(set(drawn.values())) == len(drawn)


def ask_as_rank(out: Path) -> None:
    with setup("cpu", "fp32") as runtime:
        ask(out, runtime)


def ask(out: Path, runtime) -> None:
    """What a process gets, in files beside `out`."""
    model, tokenizer = make_model()
    engine = Engine(model, tokenizer, slots=3)
    chat.LETTER_BATCH = 5  # several batches for each rank
    options = AnswerSettings(temperature=1.0, top_k=20, num_samples=2, max_new_tokens=5, max_problems=19)
    for name in ("ARC-Challenge", "GSM8K"):
        few = replace(options, max_problems=2)
        evaluate_task(TASKS[name](), model, tokenizer, runtime, few, engine=engine)  # some ranks have nothing to do
        path = out.with_name(f"{out.name}-{name}.jsonl")
        score = evaluate_task(TASKS[name](), model, tokenizer, runtime, options, name, path, engine)
        found = json.dumps([score.records, list(score.pass_at.items())])
        out.with_name(f"{out.name}-{name}-{runtime.rank}.json").write_text(found)


class Rows(NamedTuple):
    """As much of a task as is compared."""

    text: str
    count: int

    def __len__(self) -> int:
        return self.count

    def hashes(self) -> dict[str, str]:
        return {"rows": self.text}


def tell_common_tasks(out: Path) -> None:
    """One of two ranks has another sandbox, a longer file, and another one of the same length."""
    with setup("cpu", "fp32") as runtime:
        tasks: Any = {"A": Rows("a", 3), "B": Rows("b", 4 + runtime.rank), "C": Rows("c", 5)}
        tasks |= {"E": Rows(f"e{runtime.rank}", 6)}
        found = common_tasks(tasks if runtime.rank == 0 else tasks | {"D": Rows("d", 1)}, runtime)
        out.with_name(f"{out.name}-{runtime.rank}").write_text(" ".join(found))


def test_a_task_that_ranks_do_not_share_is_left_out(tmp_path) -> None:
    """Else their answers to two tasks would be joined."""
    said = Forked(tmp_path / "job", tell_common_tasks, tmp_path / "found", ranks=2).done()
    assert [(tmp_path / f"found-{rank}").read_text() for rank in range(2)] == ["A C", "A C"]
    assert [line.split()[1] for line in said.splitlines() if line.startswith("tasks: ")] == ["B", "E", "D"]
    assert common_tasks({}, one_process()) == {}


def test_the_figures_are_the_same_for_any_number_of_ranks(fake_hub, hub, tmp_path) -> None:
    job = Forked(tmp_path / "job", ask_as_rank, tmp_path / "of-3", ranks=3, NANOCHAT_HUB=str(fake_hub))
    ask(tmp_path / "of-1", one_process())
    job.done()
    for name in ("ARC-Challenge", "GSM8K"):
        alone = (tmp_path / f"of-1-{name}-0.json").read_text()
        assert len(json.loads(alone)[0]) == 19
        for path in tmp_path.glob(f"of-*-{name}.jsonl"):
            assert list(read_jsonl(path, dict)) == json.loads(alone)[0]
        for rank in range(3):
            assert (tmp_path / f"of-3-{name}-{rank}.json").read_text() == alone, (name, rank)
