"""Base training of a recursive model, and the table of its exits in scripts.base_loss; settings and refusals."""

import re
import signal

import pytest
from base_runs import Base, SignalAfter, files_of

from bench.rehearsal import rehearse
from bench.rehearsed_steps import new_step
from nanochat.checkpoint import load
from nanochat.cost import memory
from nanochat.paths import read_json
from nanochat.scaling import plan_run
from scripts import base_loss
from tracks.recursion.objective import DeepSupervision
from tracks.recursion.settings import PRESETS, with_preset
from tracks.recursion.train import Config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base"))


def test_presets() -> None:
    config = with_preset(Config(recursion="extreme"))
    assert (config.warmup_steps, config.grad_clip, config.matrix_lr) == (200, 1.0, 0.02)
    shape = {"supervision": 4, "loops": 2, "passes": 1, "detached": 0}
    assert config.model_fields == shape | {"residual_power": 0.0}
    assert (config.supervision_base, config.improvement_reward) == (10, 2)
    own = with_preset(Config(recursion="extreme", supervision=2, warmup_steps=3))
    assert (own.supervision, own.warmup_steps, own.loops) == (2, 3, 2)
    assert set(PRESETS) == {"moderate", "aggressive", "extreme"}


def test_a_curriculum_sets_the_exits_and_the_flops() -> None:
    config = with_preset(Config(curriculum="2,3,4"))
    assert (config.supervision, config.parts, config.share_of_flops) == (4, (2, 3, 4), 0.75)
    assert with_preset(Config(curriculum="1,3")).supervision == 3
    assert with_preset(Config()).share_of_flops == 1
    assert with_preset(Config(carry=True, supervision=2)).share_of_flops == 0.5
    assert [with_preset(Config(curriculum=parts)).sweeps for parts in ("", "2,3,4", "1,2")] == [12, 9, 4.5]
    assert with_preset(Config(supervision=3, passes=2, loops=1)).sweeps == 12
    # By the clock parts have equal seconds: four steps with one exit for each with four.
    clocked = with_preset(Config(curriculum="1,4", target_seconds=600))
    assert clocked.share_of_flops == pytest.approx((4 * 1 + 1 * 4) / 5 / 4)
    whole, part = (plan_run(with_preset(Config(depth=2, curriculum=parts)), 512) for parts in ("", "2,3,4"))
    assert part.flops_per_token == pytest.approx(0.75 * whole.flops_per_token, abs=1)
    assert part.notes[-1] == "curriculum: 2, 3, 4 exits in equal parts of the run; FLOPs are the mean over the run"


def test_what_cannot_be_is_one_sentence(here) -> None:
    for flags, sentence in (
        ({"curriculum": "2,x"}, "--curriculum=2,x has to be numbers of exits, like 2,3,4"),
        ({"curriculum": "0,2"}, "--curriculum=0,2 has to be numbers of exits, like 2,3,4"),
        (
            {"curriculum": "2,3", "supervision": 4},
            "--curriculum=2,3 trains at most 3 exits, and the model has 4: give --supervision=3, or none",
        ),
        (
            {"carry": True, "curriculum": "2,4"},
            "--curriculum is for exits that are trained together: leave out it or --carry",
        ),
        (
            {"carry": True, "supervision_base": 3.0},
            "--supervision-base is for exits that are trained together: leave out it or --carry",
        ),
        (
            {"carry": True, "detached": 1},
            "--detached is for exits that are trained together: leave out it or --carry",
        ),
        (
            {"carry": True, "num_iterations": 10},
            "--carry has a step for each of 4 exits, and 10 steps would end in the middle of a batch: use"
            " --num-iterations=12",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            with_preset(Config(**flags))
    assert with_preset(Config(carry=True, num_iterations=12)).num_iterations == 12
    with pytest.raises(ValueError, match="--detached=4 has to be below --supervision=4"):
        with_preset(Config(recursion="extreme", detached=4))
    for flag, sentence in {
        "--supervision=0": "--supervision has to be 1 or more, not 0",
        "--model=golf-seed": "no kind of model has these fields together: exclusive_last, ",
        "--model=reference,loops=3": "--model=reference,loops=3: loops is set by a flag of "
        "python -m tracks.recursion.train, see its --help",
    }.items():
        refused = here("tracks.recursion.train", "--dry-run", "--depth=1", flag, code=2)
        assert refused.stderr.startswith(f"error: {sentence}")


def test_the_plan_says_how_often_a_block_runs(here) -> None:
    done = here("tracks.recursion.train", "--dry-run", "--depth=1", "--recursion=moderate", "--loops=3")
    assert "recursion moderate: each block runs 4 exits x 1 passes x (3 loops + 1) times for a token\n" in done.stdout


def test_a_recursive_model_has_a_table_of_its_exits(base, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    short = ("--depth=1", "--num-iterations=4", "--save-every=-1")
    flags = (*short, "--recursion=aggressive", "--supervision=2")
    assert "exits: " in base.run("exits", *flags, script="tracks.recursion.train")
    assert base.series("exits", "val/bpb at exit 1")
    base_loss.main(base_loss.Config(eval_bytes=3000, dtype="fp32", tag="exits"))
    said = capsys.readouterr().out
    record = read_json(base.folder / "base_loss/exits/outcome.json")
    table = record["tables"][0]
    assert [row[:2] for row in table["rows"]] == [[0, "yes"], [1, "yes"], [2, "no"], [3, "no"]]
    assert table["rows"][1][2] == pytest.approx(record["metrics"]["val bpb"]["value"], rel=1e-6)
    assert len(re.findall(r"^\| \d    \| (?:yes|no) +\| \d\.\d{4} \| ", said, re.MULTILINE)) == 4
    manifest = load(base.of("exits"), 4).manifest
    assert manifest["stage"] == "base_train"
    assert (manifest["model"]["kind"], manifest["model"]["supervision"]) == ("recursive", 2)
    # Base training does not go on with another kind of model.
    said = base.refused("exits", *short, "--grad-clip=1", "--num-iterations=8")
    assert "holds another run: " in said
    assert "its model has kind recursive and not gpt. Use another --tag, or --resume=never" in said


def test_a_curriculum_is_the_same_after_a_stop(base) -> None:
    """Parts of 6 steps end at 2 and 4; a run that was stopped in the second part goes on with its exits."""
    flags = ("--depth=1", "--num-iterations=6", "--curriculum=1,2,3", "--save-every=1")
    script = "tracks.recursion.train"
    base.run("parts", *flags, script=script)
    exits = {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0, 5: 3.0, 6: 3.0}
    assert base.series("parts", "train/exits") == exits
    assert list(base.series("parts", "train/exit_2")) == [5, 6]
    longer = [flag for flag in flags if not flag.startswith("--num-iterations")]
    said = base.refused("parts", *longer, "--num-iterations=9", script=script)
    assert "parts has finished with --curriculum=1,2,3, and with more steps it would go back to fewer exits" in said
    assert (base.of("parts") / "outcome.json").exists()
    base.run("stopped", *flags, script=script, before=SignalAfter(2, signal.SIGTERM))
    assert max(base.series("stopped", "train/exits")) == 3
    assert not (base.of("stopped") / "outcome.json").exists()
    base.run("stopped", *flags, script=script)
    assert base.series("stopped", "train/exits") == exits
    assert base.losses("stopped") == base.losses("parts")
    assert files_of(base.of("stopped"), 6) == files_of(base.of("parts"), 6)


# depth, rows, options
CASES = "4 16 | 4 16 checkpointing".split(" | ")
SLOW_CASES = "12 4 fp8 | 12 16 checkpointing".split(" | ")


@pytest.mark.parametrize("case", CASES + [pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES])
def test_a_dry_run_has_the_memory_of_a_rehearsal(case) -> None:
    depth, rows, *words = case.split()
    in_fp8, checkpointing = "fp8" in words, "checkpointing" in words
    config = with_preset(Config(depth=int(depth)))
    plan = plan_run(config, 32_768)
    objective = DeepSupervision(config.supervision_base, config.improvement_reward)
    options = {"in_fp8": in_fp8, "checkpointing": checkpointing, "objective": objective}
    found = rehearse(lambda runtime: new_step(plan.model, int(rows), runtime, **options), 1).peak
    estimated = sum(memory(plan, int(rows), 1, checkpointing, in_fp8).values())
    assert estimated == pytest.approx(found, rel=0.1)
