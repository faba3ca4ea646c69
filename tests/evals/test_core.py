"""CORE: the decisions of the plain twin, for any batch, number of ranks and model; figures, and the training loop."""

import random
import re
import statistics
from types import SimpleNamespace

import bundles
import pytest
from models import CONFIGS, limit_memory, model_for
from plain_core import all_items, assert_plain, check_decisions, decisions

from nanochat.evals import core
from nanochat.evals.core import core_scores, evaluate_core
from nanochat.evals.core_tasks import read_bundle
from nanochat.log import MetricLog, read_metrics
from nanochat.statistics import mean_estimate
from nanochat.train import State

TASKS = [*bundles.world_tasks(9), *bundles.HARD]
MODEL = {"depth": 3, "max_seq_len": 256, "window_pattern": "SL"}


@pytest.fixture(scope="module")
def tokenizer():
    return bundles.vocabulary()


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A mirror with the tasks of the world and the hard ones."""
    mirror = tmp_path_factory.mktemp("hub")
    bundles.write_bundle(mirror, TASKS)
    return mirror


@pytest.fixture
def tasks(mirror, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    return read_bundle()


@pytest.fixture(scope="module")
def model(tokenizer):
    """A model that has memorized half of the answers to completions."""
    texts = []
    for task in TASKS:
        if task.kind == bundles.COMPLETION:
            texts += [f"{row['context'].strip()}{task.delimiter}{row['continuation']}" for row in task.rows[::2]]
    return bundles.memorized(tokenizer, "\n\n".join(texts), **MODEL)


def test_decisions_are_those_of_one_prompt_at_a_time(model, tokenizer, tasks, tmp_path, monkeypatch) -> None:
    """Long prompts are cut at 256 tokens; the short window is 128."""
    scores = evaluate_core(model, tokenizer, tasks, bundles.one_process(), folder=tmp_path)
    correct = assert_plain(model, tokenizer, tasks, tmp_path)
    assert 10 < sum(correct) < len(correct) - 10
    with monkeypatch.context() as patches:
        limit_memory(patches, model, 3)
        assert evaluate_core(model, tokenizer, tasks, bundles.one_process()) == scores
    items = [item for task in tasks for item in all_items(task, tokenizer)]
    lengths = [len(item.prefix) + max(map(len, item.options)) for item in items]
    assert min(lengths) < 100 < 256 < max(lengths)
    assert list(scores) == [task.label for task in tasks]
    for task in tasks:
        correct = [decision["correct"] for decision in decisions(tmp_path, task)]
        assert scores[task.label] == mean_estimate(correct).centered(task.baseline)


def test_a_vocabulary_without_a_first_token(model, tokenizer, tmp_path, monkeypatch) -> None:
    """As that of Qwen and SmolLM. Options may differ from their first token on, and may be scored whole."""
    monkeypatch.setattr(tokenizer, "prefix", ())
    choices = [bundles.choices("", "red cat", "blue"), bundles.choices("Which?", "red", "the blue cat")]
    bare = [
        bundles.CoreTask("bare_schema", "hard", bundles.SCHEMA, 0, 50, bundles.HARD_CONTEXTS),
        bundles.CoreTask("bare_choices", "hard", bundles.CHOICE, 0, 50, choices),
        bundles.CoreTask("bare_completion", "hard", bundles.COMPLETION, 0, 0, bundles.HARD_COMPLETIONS, "\nAnswer: "),
    ]
    bundles.write_bundle(tmp_path / "mirror", bare)
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    found = read_bundle()
    assert any(not len(item.prefix) for task in found for item in all_items(task, tokenizer))
    evaluate_core(model, tokenizer, found, bundles.one_process(), folder=tmp_path)
    assert_plain(model, tokenizer, found, tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_decides_like_the_plain_twin(name, tmp_path, monkeypatch) -> None:
    check_decisions(name, tmp_path, monkeypatch)


def test_rows_longer_than_the_context_share_a_batch_with_shorter_ones(tokenizer, tmp_path, monkeypatch) -> None:
    """The branches of a row may be longer than the context together, and shorter rows are padded to that length."""
    dice = random.Random(11)
    options = [f"{' '.join(dice.choices(['red', 'blue', 'cat'], k=20))} {i}" for i in range(8)]
    rows = [bundles.choices("Which? ", *options), bundles.choices("Is it?", "yes", "no")]
    long = bundles.CoreTask("long", "hard", bundles.CHOICE, 0, 12, rows)
    bundles.write_bundle(tmp_path / "mirror", [*bundles.HARD, long])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    monkeypatch.setitem(core.BATCH_TOKENS, "cpu", 10**6)
    for context in (16, 100, 171):
        model = model_for(tokenizer, max_seq_len=context)
        folder = tmp_path / str(context)
        evaluate_core(model, tokenizer, read_bundle(), bundles.one_process(), 0, folder)
        assert_plain(model, tokenizer, read_bundle(), folder)
        too_long = sum("too_long" in ours for task in read_bundle() for ours in decisions(folder, task))
        assert (too_long > 0) == (context == 16)  # these answers do not fit, and are wrong


def test_batches_and_ranks_do_not_matter_and_prefixes_are_computed_once(
    model, tokenizer, tasks, tmp_path, monkeypatch
) -> None:
    hidden, shapes = model.hidden, []

    def watched_hidden(ids, cache=None):
        shapes.append(ids.shape)
        return hidden(ids, cache)

    monkeypatch.setattr(model, "hidden", watched_hidden)
    [task] = [task for task in tasks if task.label == "world_places"]

    def evaluate(batch_tokens, **process):
        shapes.clear()
        monkeypatch.setitem(core.BATCH_TOKENS, "cpu", batch_tokens)
        evaluate_core(model, tokenizer, [task], bundles.one_process(**process), 0, tmp_path / "found")
        return decisions(tmp_path / "found", task)

    alone = evaluate(1)
    found = []
    for batch_tokens in (700, 10**6):
        found.append(evaluate(batch_tokens))
        for shape in shapes:  # padding comes on top
            assert shape[0] == 1 or shape.numel() <= 1.5 * batch_tokens
    assert len(shapes) == 2  # prefixes with their first branches, other branches
    every_option = [len(item.prefix) + len(option) for item in all_items(task, tokenizer) for option in item.options]
    assert sum(shape.numel() for shape in shapes) < 0.6 * sum(every_option)
    parts = []
    for rank in [*range(1, 11), 0]:  # rank 0 is the last, and gathers all; there are 9 items
        ranks = {"rank": rank, "world_size": 11, "all_gather": lambda own: parts.append(own) or parts}
        by_ranks = evaluate(700, **ranks)
    found.append(by_ranks)
    assert sorted(map(len, parts)) == [0, 0] + [1] * 9
    for some in found:
        for ours, first in zip(some, alone, strict=True):
            assert ours.pop("losses") == pytest.approx(first["losses"], rel=1e-5)
            assert ours == {name: first[name] for name in first if name != "losses"}


def test_the_evaluation_of_the_training_loop(model, tokenizer, tasks, tmp_path, capsys) -> None:
    for block in model.blocks:
        block.compile(backend=lambda graph, inputs: pytest.fail("blocks are compiled again"))
    model.compiled = True
    model.attention = "flash3"  # a path that this machine has not
    state = State(step=7)
    with MetricLog(tmp_path) as log:
        trainer = SimpleNamespace(
            model=model, tokenizer=tokenizer, runtime=bundles.one_process(), log=log, tokenizer_tag="none"
        )
        assert core_scores(trainer, -1, 500) == []
        [evaluation] = core_scores(trainer, 5, -1)
        evaluation.evaluate(state)
        [record] = read_metrics(log.path)
    assert model.attention == "flash3"
    assert record["step"] == 7
    assert state.figures["last"] == {"core_metric": (record["core_metric"], record["core_metric_stderr"])}
    assert not state.figures["first"]
    assert record["core_metric"] == pytest.approx(statistics.mean(record[f"core/{task.label}"] for task in tasks))
    assert f"step 00007 | core_metric: {record['core_metric']:.4f} ± " in capsys.readouterr().out


def test_without_the_bundle_a_run_does_without_the_estimate(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))  # an empty mirror
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    trainer = SimpleNamespace(runtime=bundles.one_process(), tokenizer_tag="none")
    assert core_scores(trainer, 5, -1) == []
    assert re.match("core: no estimate during training, .*core.yaml", capsys.readouterr().out)
