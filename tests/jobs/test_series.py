"""A series: steps see the outcomes of steps before them; a failure ends it, a second process is refused."""

from collections.abc import Iterator

import pytest

from nanochat.config import parse
from nanochat.hardware import find_accelerator
from nanochat.jobs import series
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    figure,
    flags_among,
    launch_on_all_gpus,
    refuse_own,
    report_step,
    run_series,
    tokenizer_step,
    training_seconds,
    training_step,
    words_of,
)
from nanochat.paths import hold_folder, stage_dir, write_json


class Config(SeriesSettings):
    """A series for a test."""


def chosen(text_folder) -> Iterator[Step]:
    """A tokenizer, and a command that depends on its outcome."""
    config = parse(Config, ["--vocab-size=270", "--tag=chosen"])
    yield tokenizer_step(config, str(text_folder))
    reached = figure("tok_train", "chosen", "vocab_size_reached")
    yield Step("next", ["scripts.tok_train", f"--vocab-size={reached + 1}", f"--data={text_folder}", "--tag=next"])


def test_a_step_is_chosen_by_the_outcome_before_it(base, text_folder, capfd) -> None:
    run_series("test", "chosen", chosen(text_folder))
    assert "== next: python -m scripts.tok_train --vocab-size=271" in capfd.readouterr().out
    run_series("test", "chosen", chosen(text_folder))
    assert "== tok_train: already finished" in capfd.readouterr().out


def test_a_failure_ends_the_series_with_its_status(base, capfd) -> None:
    def steps():
        yield Step("wrong", ["scripts.tok_train", "--vocab-size=none"])
        raise AssertionError("a series goes on after a failure")

    with pytest.raises(SystemExit) as ended:
        run_series("test", "failing", steps())
    assert ended.value.code == 2
    assert "test: wrong failed with exit status 2" in capfd.readouterr().err


def test_a_second_process_is_refused(base) -> None:
    with hold_folder(stage_dir("test", "held")), pytest.raises(ValueError, match="another process runs in"):
        run_series("test", "held", iter(()))


def test_flags_of_other_commands_are_gathered() -> None:
    config = parse(Config, ["--tag=a", "--depth=4", "--flags=--no-compile --width=2", "--note=two words"])
    assert words_of(config) == ["--no-compile", "--width=2", "--depth=4", "--note=two words"]
    with pytest.raises(ValueError, match=r"^unknown argument extra: "):
        parse(Config, ["extra"])
    with pytest.raises(ValueError, match=r"^--depth differs between runs: use --depths$"):
        refuse_own(words_of(config), {"--depth": "--depths"})


def test_the_name_of_the_card_is_checked_before_anything_runs(monkeypatch, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^--out=card.html is not a Markdown file, name it like card.md$"):
        parse(Config, ["--out=card.html"])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"--out={tmp_path}/card.md" in report_step("a", "~/card.md").command


def test_a_value_goes_with_its_flag() -> None:
    config = parse(Config, ["--flags=--loops 3 --depth=2 --no-compile --eval-every -1 --passes=2 --note 'a b'"])
    assert flags_among(words_of(config), {"--loops", "--passes"}) == (
        ["--loops=3", "--passes=2"],
        ["--depth=2", "--no-compile", "--eval-every=-1", "--note=a b"],
    )
    assert flags_among([], {"--loops"}) == ([], [])


def test_flags_may_have_underscores() -> None:
    config = parse(Config, ["--target_flops=1e9", "--flags=--dry_run --note=a_b --depth 4_0"])
    assert words_of(config) == ["--dry-run", "--note=a_b", "--depth=4_0", "--target-flops=1e9"]
    with pytest.raises(ValueError, match=r"^--target-flops differs between runs: use --sweeps$"):
        refuse_own(words_of(config), {"--target-flops": "--sweeps"})


@pytest.mark.parametrize(("found", "used"), [(0, 0), (1, 0), (2, 2), (3, 2), (7, 4), (8, 8)])
def test_runs_start_on_a_power_of_two_of_the_gpus_here(found, used, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_NODES", "2")
    monkeypatch.setattr(series, "find_hardware", lambda named, nodes: (found * nodes, find_accelerator("H100")))
    words = launch_on_all_gpus()
    assert words[-1:] == ([f"--nproc_per_node={used}"] if used else [])


def test_the_last_checkpoint_is_that_of_the_highest_step(base) -> None:
    for step in (999_999, 1_000_000):
        manifest = stage_dir("base_train", "long") / f"step_{step:06d}" / "manifest.json"
        write_json(manifest, {"loop": {"seconds": float(step)}})
    (stage_dir("base_train", "long") / "step_1000001.tmp-part").mkdir()
    assert training_seconds("base_train", "long") == 1_000_000


def test_steps_name_what_they_read_and_write(tmp_path, monkeypatch) -> None:
    step = training_step("a", "scripts.base_train", ["--depth=1"], "t-a", tokenizer_tag="t", data="letters")
    assert (step.output, step.parent, step.data) == ("base_train/t-a", "tok_train/t", "letters")
    assert step.command[1:] == ["--depth=1", "--tag=t-a", "--tokenizer-tag=t", "--data=letters"]
    tuned = training_step("b", "scripts.chat_sft", [], "t-a", stage="chat_sft", parent="base_train/t-a")
    assert (tuned.output, tuned.parent, tuned.data) == ("chat_sft/t-a", "base_train/t-a", "")
    monkeypatch.chdir(tmp_path)
    assert report_step("t", "").command[-1] == f"--out={tmp_path}/t.md"
