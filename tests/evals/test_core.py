"""CORE: the decisions of the plain way, whatever the batch, the ranks and the model; files, errors, the hook."""

import json
import math
import os
import random
import signal
import statistics

import pytest
import torch
from bundles import (
    CHOICE,
    COMPLETION,
    HARD,
    CoreTask,
    choices,
    one_process,
    taught,
    vocabulary,
    world_tasks,
    write_bundle,
)
from forks import Forked
from models import CONFIGS, lively
from plain_core import decide

from nanochat.evals import core as eval_core
from nanochat.evals.core import Result, core_metric, estimate, evaluate, identity
from nanochat.evals.core_tasks import prepare
from nanochat.log import MetricLog, read_metrics
from nanochat.runtime import setup
from nanochat.train import State


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary()


@pytest.fixture(scope="module", autouse=True)
def bundle(tmp_path_factory):
    """The world's tasks and the hard ones, in a mirror."""
    home = tmp_path_factory.mktemp("hub")
    write_bundle(home / "mirror", [*world_tasks(9), *HARD])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOCHAT_HUB", str(home / "mirror"))
        patch.setenv("NANOCHAT_BASE_DIR", str(home / "base"))
        yield home


@pytest.fixture(scope="module")
def prepared(tokenizer):
    return prepare(tokenizer)


def by_heart() -> str:
    """Half of the answers to completions, as they are asked."""
    asked = [task for task in [*HARD, *world_tasks(9)] if task.kind == COMPLETION]
    return "\n\n".join(
        f"{row['context'].strip()}{task.delimiter}{row['continuation']}" for task in asked for row in task.rows[::2]
    )


@pytest.fixture(scope="module")
def model(tokenizer):
    return taught(tokenizer, by_heart(), max_seq_len=256, window_pattern="SL")


def decisions(folder, one) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{one.task.label}.jsonl").read_text().splitlines()]


def assert_plain(model, tokenizer, prepared, folder) -> list[bool]:
    """Every decision in a folder is that of one prompt at a time."""
    right = []
    for one in prepared:
        items, found = one.task.items(0), decisions(folder, one)
        assert [decision["item"] for decision in found] == list(range(len(items)))
        for index, ours in enumerate(found):
            plain = decide(model, tokenizer, one.task, items, index)
            assert ours["correct"] == plain["correct"], (one.task.label, index)
            right.append(ours["correct"])
            if one.task.kind == COMPLETION:
                assert ours["missed"] == pytest.approx(plain["missed"])
                continue
            assert (ours["chosen"], ours["gold"]) == (plain["chosen"], items[index]["gold"]), (one.task.label, index)
            means = [math.nan if mean is None else mean for mean in ours["losses"]]
            assert means == pytest.approx(plain["losses"], rel=1e-4, nan_ok=True)
    return right


def test_decisions_are_those_of_one_prompt_at_a_time(model, tokenizer, prepared, tmp_path):
    """Long prompts are cut at 256 tokens; the short window is 128."""
    results = evaluate(model, prepared, one_process(), folder=tmp_path)
    right = assert_plain(model, tokenizer, prepared, tmp_path)
    assert 10 < sum(right) < len(right) - 10
    rows = [len(trunk) + max(map(len, options)) for one in prepared for trunk, options, _ in one.load()]
    assert min(rows) < 100 < 256 < max(rows)
    for one, result in zip(prepared, results, strict=True):
        correct = [decision["correct"] for decision in decisions(tmp_path, one)]
        assert (result.label, result.items, result.baseline) == (one.task.label, len(correct), one.task.baseline)
        assert result.accuracy == statistics.mean(correct)
    completions = [r for one, r in zip(prepared, results, strict=True) if one.task.kind == COMPLETION]
    assert 0 < sum(result.accuracy for result in completions) < len(completions)


@pytest.mark.parametrize("name", CONFIGS)
def test_in_every_configuration(name, tokenizer, prepared, tmp_path):
    few = [one for one in prepared if one.task.label.startswith("hard") or one.task.label == "world_schema"]
    fields = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"], "max_seq_len": 144}
    model = lively(CONFIGS[name] | fields).eval()
    evaluate(model, few, one_process(), folder=tmp_path)
    assert_plain(model, tokenizer, few, tmp_path)


def test_rows_longer_than_the_context_lie_beside_shorter_ones(tokenizer, tmp_path, monkeypatch):
    """The branches of a row may be longer than the context together; what pads the row beside it has places too."""
    seed = random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    options = [f"{' '.join(dice.choices(['red', 'blue', 'cat'], k=20))} {i}" for i in range(8)]
    long = CoreTask("long", "hard", CHOICE, 0, 12, [choices("Which? ", *options), choices("Is it?", "yes", "no")])
    write_bundle(tmp_path / "mirror", [*HARD, long])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    fields = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"]}
    few = prepare(tokenizer)
    for context in dice.sample(range(100, 300), 3):
        model = lively(CONFIGS["reference"] | fields | {"max_seq_len": context}).eval()
        evaluate(model, few, one_process(), 10**6, tmp_path / str(context))
        assert_plain(model, tokenizer, few, tmp_path / str(context))


def test_ties_go_to_the_first(prepared, tokenizer, tmp_path):
    """A model that knows nothing: all tokens are equally likely, so that every item is a tie."""
    fields = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"]}
    model = lively(CONFIGS["reference"] | fields).eval()
    with torch.no_grad():
        model.head.weight.zero_()
    evaluate(model, prepared, one_process(), folder=tmp_path)
    found = [decision for one in prepared for decision in decisions(tmp_path, one) if "chosen" in decision]
    empty = [decision for decision in found if decision["losses"][0] is None]
    assert len(empty) == 3  # three times the same, one alone, and the beginning of others
    for decision in found:
        assert decision["chosen"] == 0 or decision["losses"].index(None) > 0, decision


def test_batches_do_not_matter_and_trunks_are_computed_once(model, prepared, tmp_path, monkeypatch):
    seed = random.randrange(10**6)
    print("seed", seed)
    hidden, logits, seen = model.hidden, eval_core.cross_entropy, []
    monkeypatch.setattr(model, "hidden", lambda ids, **given: seen.append(ids.shape) or hidden(ids, **given))
    asked = []
    counting = lambda states, *given, **options: asked.append(len(states)) or logits(states, *given, **options)  # noqa: E731
    monkeypatch.setattr(eval_core, "cross_entropy", counting)
    one = next(one for one in prepared if one.task.label == "world_places")
    prompts, texts = one.load(), []
    for budget in (1, random.Random(seed).randrange(50, 2000), 10**6):
        seen.clear()
        asked.clear()
        evaluate(model, [one], one_process(), budget, tmp_path / str(budget))
        texts.append((tmp_path / str(budget) / "world_places.jsonl").read_text())
        assert all(rows == 1 or rows * width <= budget for rows, width in seen)
        assert sum(asked) == prompts.scored.sum()
    for text in texts[1:]:
        for ours, alone in zip(map(json.loads, text.splitlines()), map(json.loads, texts[0].splitlines()), strict=True):
            assert ours.pop("losses") == pytest.approx(alone.pop("losses"), rel=1e-5)
            assert ours == alone
    assert len(seen) == 1
    options = sum(len(trunk) + len(option) for trunk, ends, _ in prompts for option in ends)
    assert seen[0].numel() < 0.6 * options


def test_answers_that_do_not_fit_are_wrong_and_the_rest_is_as_ever(tokenizer, prepared, tmp_path, capsys):
    fields = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"], "max_seq_len": 16}
    model, many = lively(CONFIGS["reference"] | fields).eval(), 0
    results = evaluate(model, prepared, one_process(), folder=tmp_path)
    said = capsys.readouterr().out
    for one, result in zip(prepared, results, strict=True):
        items, found, prompts = one.task.items(0), decisions(tmp_path, one), list(one.load())
        long = [index for index, (*_, scored) in enumerate(prompts) if max(scored) >= 16]
        assert [index for index, ours in enumerate(found) if ours.get("too_long")] == long
        for index, ours in enumerate(found):
            plain = index not in long and decide(model, tokenizer, one.task, items, index)["correct"]
            assert ours["correct"] == plain, (one.task.label, index)
        assert result.accuracy == statistics.mean(ours["correct"] for ours in found)
        told = f"core: {one.task.label}, {len(long)} of {len(items)} items: their answers do not fit into the model's"
        assert (told in said) == bool(long)
        many += len(long)
    assert 5 < many < sum(len(one.load().gold) for one in prepared) / 2


# ---- ranks ----


def on_ranks(folder) -> None:
    with setup("cpu", "fp32") as runtime:
        tokenizer = vocabulary()
        model = taught(tokenizer, by_heart(), max_seq_len=256, window_pattern="SL")
        hidden, seen = model.hidden, []
        model.hidden = lambda ids, **given: seen.append(ids.numel()) or hidden(ids, **given)
        results = evaluate(model, prepare(tokenizer), runtime, 1, folder / "ranks")
        again = evaluate(model, prepare(tokenizer), runtime, 1, folder / "ranks")
        assert results == again
        record = {"tokens": sum(seen), "metric": core_metric(results)}
        (folder / f"{runtime.rank}.json").write_text(json.dumps(record))


def test_ranks_share_the_tokens_and_agree(model, prepared, bundle, tmp_path):
    variables = {"NANOCHAT_HUB": str(bundle / "mirror"), "NANOCHAT_BASE_DIR": str(tmp_path / "base")}
    job = Forked(tmp_path / "out", on_ranks, tmp_path, ranks=2, **variables)
    alone = core_metric(evaluate(model, prepared, one_process(), 1, tmp_path / "alone"))
    job.done(120)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert {tuple(one["metric"]) for one in seen} == {alone}
    loads = [one["tokens"] for one in seen]
    assert max(loads) < 1.1 * min(loads), loads
    for one in prepared:
        assert decisions(tmp_path / "ranks", one) == decisions(tmp_path / "alone", one)


def test_more_ranks_than_rows(model, prepared):
    parts = []

    def gathered(own):
        parts.append(own)
        return sum(parts)

    one = prepared[-1]
    for rank in range(6):
        runtime = one_process(rank=rank, world_size=6, all_sum=gathered)
        results = evaluate(model, [one], runtime)
    assert sum(bool(part.any()) for part in parts) <= len(one.load().gold) < 6
    assert results == evaluate(model, [one], one_process())


# ---- what is on disk ----


def killed_after(tasks: int, folder) -> None:
    tokenizer, write = vocabulary(), eval_core.write_text

    def writes(path, text):
        nonlocal tasks
        if not tasks:
            os.kill(os.getpid(), signal.SIGKILL)
        tasks -= 1
        write(path, text)

    eval_core.write_text = writes
    evaluate(
        taught(tokenizer, by_heart(), max_seq_len=256, window_pattern="SL"),
        prepare(tokenizer),
        one_process(),
        folder=folder,
    )


def test_a_killed_run_goes_on_with_the_task_it_was_at(
    model, tokenizer, prepared, bundle, tmp_path, monkeypatch, capsys
):
    variables = {"NANOCHAT_HUB": str(bundle / "mirror"), "NANOCHAT_BASE_DIR": str(bundle / "base")}
    assert Forked(tmp_path / "out", killed_after, 3, tmp_path / "a", **variables).codes(100) == [-9]
    there = [path.stem for path in (tmp_path / "a").iterdir()]
    assert sorted(there) == sorted(one.task.label for one in prepared[:3])
    (tmp_path / "a" / f"{there[0]}.jsonl").write_text('{"item": 0, "correct": true}\n{"item": 1, "co')
    (tmp_path / "a" / f"{there[1]}.jsonl").write_text('{"item": 0, "correct": true}\n')
    done = []
    decide = eval_core._decide
    monkeypatch.setattr(eval_core, "_decide", lambda *given: done.append(given) or decide(*given))
    capsys.readouterr()
    results = evaluate(model, prepared, one_process(), folder=tmp_path / "a")
    assert len(done) == len(prepared) - 1
    finished = prepared[[one.task.label for one in prepared].index(there[2])].tokens
    left = sum(one.tokens for one in prepared) - finished
    assert f"CORE: {left:,} tokens in " in capsys.readouterr().err  # whose rate the time left is told by
    assert results == evaluate(model, prepared, one_process(), folder=tmp_path / "b")
    for one in prepared:
        assert decisions(tmp_path / "a", one) == decisions(tmp_path / "b", one)


def test_an_evaluation_is_known_by_all_it_depends_on(prepared, tokenizer, monkeypatch):
    others = [prepare(tokenizer, 8), prepare(vocabulary(310)), prepared[:-1]]
    made = {identity(other, "weights", "fp32") for other in [prepared, *others]}
    made |= {identity(prepared, "others", "fp32"), identity(prepared, "weights", "bf16")}
    assert len(made) == 6
    assert identity(prepare(tokenizer), "weights", "fp32") in made
    monkeypatch.setattr(eval_core, "SCORING", eval_core.SCORING + 1)
    assert identity(prepared, "weights", "fp32") not in made


# ---- figures ----


def test_standard_errors_are_those_of_items_drawn_again():
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    tasks = [([chance.random() < share for _ in range(size)], base) for share, size, base in
             ((0.6, 80, 0.25), (0.1, 50, 0.0), (0.8, 120, 0.5))]  # fmt: skip

    def results(draw):
        drawn = [(draw(correct), base) for correct, base in tasks]
        return [Result("", statistics.mean(correct), len(correct), base) for correct, base in drawn]

    given = results(list)
    value, stderr = core_metric(given)
    assert value == pytest.approx(
        statistics.mean((r.accuracy - base) / (1 - base) for r, (_, base) in zip(given, tasks, strict=True))
    )
    drawn = [results(lambda correct: chance.choices(correct, k=len(correct))) for _ in range(2000)]
    assert statistics.stdev(core_metric(each)[0] for each in drawn) == pytest.approx(stderr, rel=0.1)
    for task, result in enumerate(given):
        assert statistics.stdev(each[task].centered for each in drawn) == pytest.approx(result.stderr, rel=0.1)
    assert Result("", 1.0, 1, 0.0).stderr == 0


def broken_compiler(graph, inputs):
    raise AssertionError("blocks are compiled again")


def test_the_hook_of_the_training_loop(model, tokenizer, prepared, tmp_path, capsys):
    state = State(step=7)
    for block in model.blocks:
        block.compile(backend=broken_compiler)
    model.compiled = True
    model.attention = "flash3"  # which is not here
    with MetricLog(tmp_path) as log:
        estimate(model, tokenizer, one_process(), 2048, log, 8)(state)
        (record,) = read_metrics(log.path)
    assert model.attention == "flash3"
    assert record["step"] == 7
    assert state.notes == {"CORE metric": record["core_metric"], "CORE metric stderr": record["core_metric_stderr"]}
    assert record["core_metric"] == pytest.approx(statistics.mean(record[f"core/{one.task.label}"] for one in prepared))
    assert f"step 00007 | CORE metric: {record['core_metric']:.4f} ± " in capsys.readouterr().out
