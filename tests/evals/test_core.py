"""CORE: the decisions of the plain twin, for any batch, number of ranks and model; files, and the training loop."""

import json
import math
import random
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bundles import (
    CHOICE,
    COMPLETION,
    HARD,
    CoreTask,
    choices,
    memorized,
    one_process,
    vocabulary,
    world_tasks,
    write_bundle,
)
from forks import Forked
from models import CONFIGS, lively
from plain_core import decide

from nanochat.evals import core
from nanochat.evals.core import Result, core_metric, core_scores, evaluate_core, identity
from nanochat.evals.core_tasks import prepare
from nanochat.gpt import GPT
from nanochat.log import MetricLog, read_metrics
from nanochat.outcome import mean_estimate
from nanochat.runtime import setup
from nanochat.train import State

TASKS = [*world_tasks(9), *HARD]
MODEL = {"max_seq_len": 256, "window_pattern": "SL"}


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary()


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Path:
    """A mirror with the tasks of the world and the hard ones."""
    home = tmp_path_factory.mktemp("hub")
    write_bundle(home / "mirror", TASKS)
    return home


@pytest.fixture(autouse=True)
def environment(hub, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(hub / "mirror"))
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(hub / "base"))


@pytest.fixture(scope="module")
def prepared(tokenizer, hub):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOCHAT_HUB", str(hub / "mirror"))
        patch.setenv("NANOCHAT_BASE_DIR", str(hub / "base"))
        return prepare(tokenizer)


@pytest.fixture(scope="module")
def model(tokenizer):
    """A model that has memorized half of the answers to completions."""
    texts = []
    for task in TASKS:
        if task.kind == COMPLETION:
            texts += [f"{row['context'].strip()}{task.delimiter}{row['continuation']}" for row in task.rows[::2]]
    return memorized(tokenizer, "\n\n".join(texts), **MODEL)


def untrained(tokenizer, name: str = "reference", **fields) -> GPT:
    shape = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"]}
    return lively(CONFIGS[name] | shape | fields).eval()


def decisions(folder: Path, one) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{one.task.label}.jsonl").read_text().splitlines()]


def assert_plain(model, tokenizer, prepared, folder: Path) -> list[bool]:
    """Every decision in a folder is that of one prompt at a time; returns the verdicts."""
    correct = []
    for one in prepared:
        items = one.task.items(0)
        found = decisions(folder, one)
        assert [decision["item"] for decision in found] == list(range(len(items)))
        for index, ours in enumerate(found):
            plain = decide(model, tokenizer, one.task, items, index)
            assert ours["correct"] == plain["correct"], (one.task.label, index)
            correct.append(ours["correct"])
            if one.task.kind == COMPLETION:
                assert ours["missed"] == pytest.approx(plain["missed"])
                continue
            assert (ours["chosen"], ours["gold"]) == (plain["chosen"], items[index]["gold"]), (one.task.label, index)
            losses = [math.nan if loss is None else loss for loss in ours["losses"]]
            assert losses == pytest.approx(plain["losses"], rel=1e-4, nan_ok=True)
    return correct


def test_decisions_are_those_of_one_prompt_at_a_time(model, tokenizer, prepared, tmp_path):
    """Long prompts are cut at 256 tokens; the short window is 128."""
    results = evaluate_core(model, prepared, one_process(), folder=tmp_path)
    correct = assert_plain(model, tokenizer, prepared, tmp_path)
    assert 10 < sum(correct) < len(correct) - 10
    lengths = [len(prefix) + max(map(len, options)) for one in prepared for prefix, options, _ in one.load()]
    assert min(lengths) < 100 < 256 < max(lengths)
    for one, result in zip(prepared, results, strict=True):
        correct = [decision["correct"] for decision in decisions(tmp_path, one)]
        assert (result.label, result.items, result.baseline) == (one.task.label, len(correct), one.task.baseline)
        assert result.accuracy.value == statistics.mean(correct)
    completions = {one.task.label for one in prepared if one.task.kind == COMPLETION}
    accuracies = [result.accuracy.value for result in results if result.label in completions]
    assert 0 < sum(accuracies) < len(accuracies)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_decides_like_the_plain_twin(name, tokenizer, prepared, tmp_path):
    few = [one for one in prepared if one.task.label.startswith("hard") or one.task.label == "world_schema"]
    model = untrained(tokenizer, name, max_seq_len=144)
    evaluate_core(model, few, one_process(), folder=tmp_path)
    assert_plain(model, tokenizer, few, tmp_path)


def test_rows_longer_than_the_context_share_a_batch_with_shorter_ones(tokenizer, tmp_path, monkeypatch):
    """The branches of a row may be longer than the context together, and shorter rows are padded to that length."""
    dice = random.Random(11)
    options = [f"{' '.join(dice.choices(['red', 'blue', 'cat'], k=20))} {i}" for i in range(8)]
    long = CoreTask("long", "hard", CHOICE, 0, 12, [choices("Which? ", *options), choices("Is it?", "yes", "no")])
    write_bundle(tmp_path / "mirror", [*HARD, long])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    few = prepare(tokenizer)
    for context in (100, 171, 299):
        model = untrained(tokenizer, max_seq_len=context)
        evaluate_core(model, few, one_process(), 10**6, tmp_path / str(context))
        assert_plain(model, tokenizer, few, tmp_path / str(context))


def test_ties_go_to_the_first_option(prepared, tokenizer, tmp_path):
    """All tokens are equally likely, so that every item is a tie."""
    model = untrained(tokenizer)
    with torch.no_grad():
        model.head.weight.zero_()
    evaluate_core(model, prepared, one_process(), folder=tmp_path)
    found = [decision for one in prepared for decision in decisions(tmp_path, one) if "chosen" in decision]
    without_tokens = [decision for decision in found if decision["losses"][0] is None]
    assert len(without_tokens) == 3  # three equal options, a single option, and one that others begin with
    for decision in found:
        assert decision["chosen"] == 0 or decision["losses"].index(None) > 0, decision


def test_batches_do_not_matter_and_prefixes_are_computed_once(model, prepared, tmp_path, monkeypatch):
    hidden, loss = model.hidden, core.cross_entropy
    shapes, scored = [], []

    def watched_hidden(ids, **given):
        shapes.append(ids.shape)
        return hidden(ids, **given)

    def watched_loss(states, *given, **options):
        scored.append(len(states))
        return loss(states, *given, **options)

    monkeypatch.setattr(model, "hidden", watched_hidden)
    monkeypatch.setattr(core, "cross_entropy", watched_loss)
    one = next(one for one in prepared if one.task.label == "world_places")
    prompts = one.load()
    found = []
    for batch_tokens in (1, 700, 10**6):
        shapes.clear()
        scored.clear()
        evaluate_core(model, [one], one_process(), batch_tokens, tmp_path / str(batch_tokens))
        found.append(decisions(tmp_path / str(batch_tokens), one))
        for prefixes, branches in zip(shapes[::2], shapes[1::2], strict=True):
            assert prefixes[0] == 1 or prefixes.numel() + branches.numel() <= batch_tokens
        assert sum(scored) == prompts.scored.sum()
    for some in found[1:]:
        for ours, alone in zip(some, found[0], strict=True):
            assert ours.pop("losses") == pytest.approx(alone["losses"], rel=1e-5)
            assert ours == {name: alone[name] for name in alone if name != "losses"}
    assert len(shapes) == 2  # prefixes, branches
    every_option = sum(len(prefix) + len(option) for prefix, options, _ in prompts for option in options)
    assert sum(shape.numel() for shape in shapes) < 0.6 * every_option


def test_answers_that_do_not_fit_are_wrong(tokenizer, prepared, tmp_path, capsys):
    model = untrained(tokenizer, max_seq_len=16)
    results = evaluate_core(model, prepared, one_process(), folder=tmp_path)
    output = capsys.readouterr().out
    many = 0
    for one, result in zip(prepared, results, strict=True):
        items, found, prompts = one.task.items(0), decisions(tmp_path, one), one.load()
        long = [index for index, item in enumerate(prompts) if max(item.scored) >= 16]
        assert [index for index, ours in enumerate(found) if ours.get("too_long")] == long
        for index, ours in enumerate(found):
            plain = index not in long and decide(model, tokenizer, one.task, items, index)["correct"]
            assert ours["correct"] == plain, (one.task.label, index)
        assert result.accuracy.value == statistics.mean(ours["correct"] for ours in found)
        line = f"core: {one.task.label}, {len(long)} of {len(items)} items: the answers do not fit into the context"
        assert (line in output) == bool(long)
        many += len(long)
    assert 5 < many < sum(len(one.load().gold) for one in prepared) / 2


# ---- ranks ----


def on_ranks(folder: Path) -> None:
    with setup("cpu", "fp32") as runtime:
        tokenizer = vocabulary()
        model = untrained(tokenizer, **MODEL)
        prepared = prepare(tokenizer, 6)
        results = evaluate_core(model, prepared, runtime, 1, folder / "ranks")
        assert evaluate_core(model, prepared, runtime, 1, folder / "ranks") == results  # from the files
        (folder / f"{runtime.rank}.json").write_text(json.dumps(core_metric(results)))


def test_ranks_agree_with_one_process(tokenizer, hub, tmp_path):
    variables = {"NANOCHAT_HUB": str(hub / "mirror"), "NANOCHAT_BASE_DIR": str(tmp_path / "base")}
    job = Forked(tmp_path / "out", on_ranks, tmp_path, ranks=2, **variables)
    prepared = prepare(tokenizer, 6)
    alone = core_metric(evaluate_core(untrained(tokenizer, **MODEL), prepared, one_process(), 1, tmp_path / "alone"))
    job.done(120)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == list(alone)
    for one in prepared:
        assert decisions(tmp_path / "ranks", one) == decisions(tmp_path / "alone", one)


def test_more_ranks_than_rows(model, prepared):
    one = prepared[-1]
    parts = []

    def all_reduce(own):
        parts.append(own)
        return sum(parts)

    for rank in range(6):
        results = evaluate_core(model, [one], one_process(rank=rank, world_size=6, all_reduce=all_reduce))
    assert sum(bool(part.any()) for part in parts) <= len(one.load().gold) < 6
    assert results == evaluate_core(model, [one], one_process())


# ---- files ----


def test_a_stopped_evaluation_resumes_with_the_unfinished_task(model, prepared, tmp_path, monkeypatch, capsys):
    write = core.write_text

    def stop_at_the_fourth(path, text):
        if len(list(tmp_path.glob("a/*"))) == 3:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(core, "write_text", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        evaluate_core(model, prepared, one_process(), folder=tmp_path / "a")
    assert {path.stem for path in tmp_path.glob("a/*")} == {one.task.label for one in prepared[:3]}
    monkeypatch.setattr(core, "write_text", write)
    decided = []
    decide_all = core._decide
    monkeypatch.setattr(core, "_decide", lambda *given: decided.append(given) or decide_all(*given))
    capsys.readouterr()
    results = evaluate_core(model, prepared, one_process(), folder=tmp_path / "a")
    assert len(decided) == len(prepared) - 3
    left = sum(one.tokens for one in prepared[3:])
    assert f"CORE: {left:,} tokens in " in capsys.readouterr().err  # the rate is that of the remaining tasks
    assert results == evaluate_core(model, prepared, one_process(), folder=tmp_path / "b")
    for one in prepared:
        assert decisions(tmp_path / "a", one) == decisions(tmp_path / "b", one)


def test_everything_that_decides_an_evaluation_is_in_its_identity(prepared, tokenizer, monkeypatch):
    others = [prepare(tokenizer, 8), prepare(vocabulary(310)), prepared[:-1]]
    found = {identity(other, "weights", "fp32") for other in [prepared, *others]}
    found |= {identity(prepared, "others", "fp32"), identity(prepared, "weights", "bf16")}
    assert len(found) == 6
    assert identity(prepare(tokenizer), "weights", "fp32") in found
    monkeypatch.setattr(core, "VERSION", core.VERSION + 1)
    assert identity(prepared, "weights", "fp32") not in found


# ---- figures ----


def test_standard_errors_are_those_of_items_drawn_again():
    dice = random.Random(12)
    tasks = []
    for share, size, baseline in ((0.6, 80, 0.25), (0.1, 50, 0.0), (0.8, 120, 0.5)):
        tasks.append(([dice.random() < share for _ in range(size)], baseline))

    def results(draw) -> list[Result]:
        drawn = [(draw(correct), baseline) for correct, baseline in tasks]
        return [Result("", len(correct), baseline, mean_estimate(correct)) for correct, baseline in drawn]

    given = results(list)
    value, stderr = core_metric(given)
    centered = [(statistics.mean(correct) - baseline) / (1 - baseline) for correct, baseline in tasks]
    assert value == pytest.approx(statistics.mean(centered))
    drawn = [results(lambda correct: dice.choices(correct, k=len(correct))) for _ in range(1000)]
    assert statistics.stdev(core_metric(each).value for each in drawn) == pytest.approx(stderr, rel=0.1)
    for task, result in enumerate(given):
        values = [each[task].centered.value for each in drawn]
        assert statistics.stdev(values) == pytest.approx(result.centered.stderr, rel=0.1)


def broken_compiler(graph, inputs):
    raise AssertionError("blocks are compiled again")


def test_the_evaluation_of_the_training_loop(model, tokenizer, prepared, tmp_path, capsys):
    for block in model.blocks:
        block.compile(backend=broken_compiler)
    model.compiled = True
    model.attention = "flash3"  # a path that this machine has not
    state = State(step=7)
    with MetricLog(tmp_path) as log:
        trainer = SimpleNamespace(model=model, tokenizer=tokenizer, runtime=one_process(), log=log)
        assert core_scores(trainer, -1, 8) == []
        [evaluation] = core_scores(trainer, 5, 8)
        evaluation.evaluate(state)
        [record] = read_metrics(log.path)
    assert model.attention == "flash3"
    assert record["step"] == 7
    assert state.notes == {"CORE metric": record["core_metric"], "CORE metric stderr": record["core_metric_stderr"]}
    assert record["core_metric"] == pytest.approx(statistics.mean(record[f"core/{one.task.label}"] for one in prepared))
    assert f"step 00007 | CORE metric: {record['core_metric']:.4f} ± " in capsys.readouterr().out
