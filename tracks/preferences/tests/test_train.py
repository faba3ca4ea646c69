"""tracks.preferences.train as a user runs it, forked, from a base model of a few steps, on pairs about numbers."""

import math
import re
import shutil
import signal

import pytest
from base_runs import SignalAfter, change_manifest, files_of
from chat_files import write_lines
from safetensors.torch import load_file, save_file
from tune_runs import FromParent

from nanochat.config import parse
from nanochat.report.card import markdown, read_card
from tracks.preferences import train as chat_dpo

STEPS = 4
SMALL = [
    *("--device-batch-size=8", f"--num-iterations={STEPS}", "--examples-per-step=4", "--init-lr-frac=2"),
    *("--beta=0.5", "--held-out=0.25", "--eval-every=2", "--save-every=2"),
    *("--keep-last=0", "--eval-metrics-tasks=GSM8K", "--eval-metrics-max-problems=2"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> FromParent:
    pairs = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"prompt": f"Letter {i}?", "chosen": "fox " * (i % 3 + 1), "rejected": f"quick {i}"} for i in range(24)]
    write_lines(pairs, *rows)
    return FromParent(tmp_path_factory.mktemp("dpo"), "chat_dpo", [*SMALL, f"--pairs={pairs}"])


@pytest.fixture(scope="module")
def whole(runs) -> str:
    return runs.run("whole")


def test_a_run_and_its_record(runs, whole) -> None:
    """The loss begins at ln 2 and falls: the parent stays as it was."""
    steps = [record for record in runs.metrics("whole") if "dpo/loss" in record]
    assert steps[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert steps[-1]["dpo/loss"] < math.log(2) - 0.1
    assert abs(steps[0]["dpo/margin"]) < 1e-4 < steps[-1]["dpo/margin"]
    metrics = runs.outcome("whole")["metrics"]
    counts = {"Pairs to learn from": 18, "Held-out pairs": 6, "Left out, being too long": 0}
    assert counts.items() <= metrics.items()
    assert metrics["Loss before"]["value"] == pytest.approx(math.log(2), abs=1e-5)
    assert metrics["Pairs with a positive margin after"]["value"] == 1
    assert metrics["KL to the parent before"]["value"] < 1e-6 < metrics["KL to the parent after"]["value"]
    assert [*runs.series("whole", "chat/GSM8K")] == [0, STEPS]
    titles = ["Loss", "Pair accuracy", "Margin", "KL to the parent", "Gradient norm", "Learning rate", "Throughput"]
    assert [curve["title"] for curve in runs.outcome("whole")["curves"]] == titles
    card = markdown(read_card(runs.folder), "report")
    assert re.search(r"## Chat DPO\n(.*\n)*- GSM8K before: 0\.\d{4}.*\n(.*\n)*- Pair accuracy after: ", card)


def test_it_resumes_bit_for_bit_without_its_parent(runs, whole) -> None:
    runs.run("parts", before=SignalAfter(1, signal.SIGTERM))
    runs.of("parent").rename(runs.folder / "elsewhere")
    runs.run("parts")
    (runs.folder / "elsewhere").rename(runs.of("parent"))
    assert files_of(runs.of("parts"), STEPS) == files_of(runs.of("whole"), STEPS)
    assert runs.metrics("parts") == runs.metrics("whole")


def test_ranks_and_micro_batches_find_the_same(runs, whole) -> None:
    shutil.rmtree(runs.folder / "reference_logprobs")  # each rank computes its own part again
    runs.run("cut", "--device-batch-size=1", ranks=2)
    for one, other in zip(runs.metrics("cut"), runs.metrics("whole"), strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"total_training_flops", "total_training_tokens", "kind"}:
            assert one[name] == pytest.approx(other[name], abs=1e-4), name


def test_another_reference_is_refused_and_a_plan_needs_none(runs, whole, monkeypatch, capsys) -> None:
    [path] = (runs.folder / "reference_logprobs").iterdir()
    right = load_file(path)["logprobs"]
    save_file({"logprobs": right * (1 + 0.2 * (right < -5))}, path)
    assert re.match(r"the loss begins at 0\.\d+, not at ln 2: .*remove it", runs.refused("never"))
    path.unlink()
    # The parent that computes them again has to be the one of then.
    runs.run("stopped", before=SignalAfter(1, signal.SIGTERM))
    shutil.rmtree(path.parent)
    [manifest] = runs.of("stopped").glob("step_*/manifest.json")
    change_manifest(manifest, lambda record: record["source"]["setting"].update(parent="0" * 64))
    said = runs.refused("stopped")
    assert "parent/step_000003 have changed since another model was trained from them" in said
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(runs.folder))
    chat_dpo.main(parse(chat_dpo.Config, [*runs.own_flags, "--dry-run"]))
    assert "\nSteps: about " in capsys.readouterr().out


def test_sharded_ranks_with_answers_of_unlike_lengths(runs, whole, tmp_path) -> None:
    """The first loss is computed before the loop, in as many micro-batches as each rank's longest answers need."""
    rows = [
        {"prompt": f"Letter {i}?", "chosen": "fox " * (60 if i % 2 else 1), "rejected": f"quick {i}"} for i in range(24)
    ]
    pairs = tmp_path / "unlike.jsonl"
    write_lines(pairs, *rows)
    flags = (f"--pairs={pairs}", "--device-batch-size=4", "--num-iterations=2", "--eval-metrics-every=-1")
    runs.run("unlike", *flags)
    runs.run("sharded", *flags, "--shard-weights", ranks=2)
    for one, other in zip(runs.metrics("sharded"), runs.metrics("unlike"), strict=True):
        for name in ("dpo/loss", "train/grad_norm"):
            assert one.get(name) == pytest.approx(other.get(name), abs=1e-4)
