"""The two phases on H100: their plans, and the gate between them. The tests of training have recursive runs."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
from outcomes import leave
from small_runs import SMALL

from nanochat.config import parse
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.log import MetricLog
from tracks.recursion.phases import PHASES, Config, PhaseName, check_first_phase, main, steps
from tracks.recursion.settings import PRESETS, PresetName, with_preset
from tracks.recursion.train import Config as TrainConfig

FALLING = [3.0 - 0.1 * step for step in range(10)]


@pytest.mark.parametrize(("phase", "preset"), [("fast", "aggressive"), ("extreme", "extreme")])
def test_phases_are_presets(series, base, phase, preset) -> None:
    done = series("tracks.recursion.phases", f"--phase={phase}", "--data=letters", *SMALL, "--dry-run")
    assert f"Number of parameters, embed: {12 * 32 * 65_536:,}\n" in done.stdout  # of the tokenizer to come
    assert f"recursion {preset}: each block runs 4 exits x 1 passes x (2 loops + 1) times" in done.stdout
    assert not (base / "tok_train").exists()


@pytest.mark.parametrize("phase", PHASES)
def test_the_plan_on_the_page_is_what_the_command_prints(series, phase: PhaseName) -> None:
    said = series("tracks.recursion.phases", f"--phase={phase}", "--data=letters", "--dry-run", "--on=8xH100@98").stdout

    def number(pattern: str) -> float:
        found = re.search(pattern, said)
        assert found, said
        return float(found[1].replace(",", ""))

    time = said.split("\ntime ")[1].split()[0]  # such as 40m59s, or 1h37m
    taken = {unit: int(count) for count, unit in re.findall(r"(\d+)([hms])", time)}
    minutes = round(60 * taken.get("h", 0) + taken.get("m", 0) + taken.get("s", 0) / 60)
    memory = number(r"memory of a rank, GB: ([0-9.]+)")
    rows = number(r" with ([0-9]+) rows at once")
    expected = [
        phase,
        f"{number(r'Number of training tokens: ([0-9,]+)') / 1e9:.2f} B",
        f"{minutes} minutes" if minutes < 60 else f"{minutes // 60} hour {minutes % 60} minutes",
        f"{memory:.0f} GB, {rows:.0f} rows at once",
        f"{number(r'; dollars ([0-9.]+)'):.0f}",
    ]
    page = (ROOT / "tracks/recursion/README.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith(f"| {phase} |") and " GB, " in line]
    assert [cell.strip() for cell in row.split("|")[1:6]] == expected


@pytest.mark.parametrize(("out", "name"), [("", "h100-extreme.md"), ("card.md", "card.md")])
def test_a_card_ends_the_series(base, out, name) -> None:
    *_, trained, card = steps(Config(phase="extreme", out=out), "letters", [])
    assert trained.output == "base_train/h100-extreme"
    assert card.command == ["nanochat.report", "--tag=h100-extreme", f"--out={Path.cwd() / name}"]


def test_the_types_of_phases_and_presets_name_the_keys() -> None:
    assert get_args(PhaseName) == tuple(PHASES)
    assert get_args(PresetName) == tuple(PRESETS)


def fast_config(*flags: str) -> dict[str, object]:
    """The config in the record of a first phase."""
    words = [*PHASES["fast"].split(), "--data=world", "--tokenizer-tag=h100", "--tag=h100-fast", *flags]
    return asdict(with_preset(parse(TrainConfig, words)))


def logged(
    base: Path, exits: list[float], norm: float = 1.0, losses: Sequence[float] = FALLING, flags: Sequence[str] = ()
) -> None:
    """Leave a finished first phase. flags: of its own, beside those of --phase=fast."""
    folder = leave(base, "base_train", "h100-fast", config=fast_config(*flags)).parent
    with MetricLog(folder) as log:
        for step, loss in enumerate(losses, 1):
            log.write("train", step, **{"train/loss": loss, "train/grad_norm": norm})
        log.write("validation", len(losses), **{f"val/bpb at exit {i}": bpb for i, bpb in enumerate(exits)})


GOOD = [2.0, 1.8, 1.7, 1.6]


@pytest.mark.parametrize(
    ("shown", "unmet"),
    [
        (
            {"exits": [2.0, 2.1, 1.7, 1.6]},
            "each exit better than the one before (2.0000 > 2.1000 > 1.7000 > 1.6000 bits per byte)",
        ),
        ({"exits": [2.0, 1.9, 1.85, 1.8]}, "refinement of 15% or more (10.0%)"),
        ({"exits": GOOD, "norm": 0.3}, "gradient norm from 0.5 to 1.5 (0.30 in the median, 0.30 at most)"),
        ({"exits": GOOD, "losses": [*FALLING[:8], 4.0, 4.0]}, "a loss that falls in each fifth of the run (2.9500, "),
        ({"exits": GOOD, "losses": FALLING[:3]}, "validations and steps (1 validations and 3 steps)"),
    ],
)
def test_the_second_phase_asks_for_what_the_first_has_shown(shown, unmet, base, capsys) -> None:
    config = Config(phase="extreme")
    with pytest.raises(UserError, match="h100-fast has not finished: run --phase=fast first, or start this phase with"):
        check_first_phase(config, "world")
    check_first_phase(replace(config, anyway=True), "world")
    assert "h100-fast has not finished" in capsys.readouterr().out
    logged(base, **shown)
    with pytest.raises(UserError) as refused:
        check_first_phase(config, "world")
    assert str(refused.value).startswith(f"h100-fast does not meet: {unmet}")
    assert str(refused.value).endswith(". --anyway starts this phase in any case")
    check_first_phase(replace(config, anyway=True), "world")
    assert f"phases: started anyway, without {unmet}" in capsys.readouterr().out


def test_a_good_first_phase_lets_the_second_begin(base, capsys) -> None:
    logged(base, GOOD)
    check_first_phase(Config(phase="extreme"), "world")
    printed = capsys.readouterr().out
    assert printed.count("| yes |") == 4
    assert "started anyway" not in printed


TOY = "--width=64 --head-dim=32 --max-seq-len=64 --total-batch-size=1024 --loops=0"


@pytest.mark.parametrize(
    ("first", "flags", "named"),
    [
        ("--depth=2", "", "--depth=2, not 12"),
        ("", "--depth=4", "--depth=12, not 4"),
        (
            "--num-iterations=20 --recursion=moderate",
            "",
            "--num-iterations=20, not 1000; --warmup-steps=100, not 150; ",
        ),
        ("--data=folder:/elsewhere", "", "--data=folder:/elsewhere, not world"),
        ("--tokenizer-tag=other", "", "--tokenizer-tag=other, not h100"),
        (
            TOY,
            "",
            "--max-seq-len=64, not 2048; --total-batch-size=1024, not 1048576; --width=64, not 0; --head-dim=32, not"
            " 128; --loops=0, not 2",
        ),
        ("--total-batch-size=1024", "--total-batch-size=1024", "--total-batch-size=1024, not 1048576"),
        ("", "--loops=3", "--loops=2, not 3"),
    ],
)
def test_another_run_of_that_name_is_no_first_phase(first: str, flags: str, named: str, base, capsys) -> None:
    """It shows all that is asked for, and of another model, preset, length, batch or text."""
    logged(base, GOOD, flags=first.split())
    config = Config(phase="extreme", flags=flags)
    sentence = f"h100-fast is not the first phase of this one, it has {named}"
    with pytest.raises(UserError) as refused:
        check_first_phase(config, "world")
    assert str(refused.value).startswith(sentence)
    check_first_phase(replace(config, anyway=True), "world")
    assert f"phases: {sentence}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "flags"),
    [
        ("--depth=4", "--depth=4 --num-iterations=50"),
        (TOY.replace("--total-batch-size=1024 ", ""), TOY),  # both phases have the smaller model
        # What may change, and how often it is measured; what is refused in the first phase alone.
        ("--device-batch-size=4 --checkpointing --eval-every=100", "--carry --total-batch-size=1024"),
        ("", "--curriculum=2,3,4 --warmup-steps=300"),
    ],
)
def test_both_phases_may_have_flags_in_common_and_of_their_own(first: str, flags: str, base, capsys) -> None:
    logged(base, GOOD, flags=first.split())
    check_first_phase(Config(phase="extreme", flags=flags), "world")
    assert capsys.readouterr().out.count("| yes |") == 4


@pytest.mark.parametrize("flag", ["--curriculum=2,3,4", "--carry"])
def test_a_first_phase_whose_loss_is_of_other_exits_is_refused(flag: str, base) -> None:
    sentence = f"{flag} changes which exits the loss of a step is of, and whether that loss falls decides"
    with pytest.raises(UserError, match=f"^{sentence}"):
        main(Config(data="world", flags=f"{flag} --depth=1"))
    assert not (base / "tok_train").exists()


def test_the_command_refuses_the_second_phase(series, base) -> None:
    done = series("tracks.recursion.phases", "--phase=extreme", "--data=letters", *SMALL, code=2)
    assert done.stderr.startswith("error: h100-fast has not finished: run --phase=fast first")
    assert not (base / "base_train/h100-extreme").exists()
