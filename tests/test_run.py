"""Base training, interrupted in every way there is: it goes on as if nothing had been, or says why not."""

import contextlib
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from base_runs import (
    STEPS,
    Base,
    FailingSave,
    OwnFolders,
    Room,
    SignalAfter,
    change_manifest,
    emulate_fp8,
    files_of,
    impatient,
    tell_of_saves,
)
from conftest import ROOT
from corpora import write_letters
from loop_parts import ALONE
from starts import TINY, start_of
from test_speedrun import until
from torch.testing import assert_close

from nanochat import fp8, runtime
from nanochat.checkpoint import hold, load
from nanochat.paths import saved_steps
from nanochat.run import build


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """With a run from the first step to the last, `straight`."""
    base = Base(tmp_path_factory.mktemp("base"))
    assert "step 00020/00020 (100.00%)" in base.run("straight")
    return base


def assert_as_straight(base: Base, tag: str) -> None:
    """Bit for bit: weights, states, and all that was written down but times."""
    assert files_of(base.of(tag)) == files_of(base.of("straight"))
    assert base.metrics(tag) == base.metrics("straight")
    mine, its = (load(base.of(name), STEPS).manifest for name in (tag, "straight"))
    assert mine["source"] == its["source"]
    timed = dict.fromkeys(("seconds", "waited", "communicating", "steady_seconds", "steady_flops"), 0)
    assert mine["loop"] | timed == its["loop"] | timed
    assert base.outcome(tag)["metrics"]["Tokens seen"] == STEPS * 256


@pytest.mark.parametrize("ranks", [1, 2])
def test_after_the_last_evaluations_only_the_record_is_written(ranks, base) -> None:
    tag = f"told-{ranks}"
    told = base.run(tag, "--num-iterations=6", "--save-every=4", ranks=ranks, before=tell_of_saves)
    assert re.findall(r"did: (\w+ \d+)", told) == ["save 4", "save 6", "amend 6"]
    manifest = load(base.of(tag), 6).manifest  # whole: its hash counts
    assert manifest["loop"]["evaluated"] == 6
    figures = manifest["loop"]["figures"]["last"]
    assert figures
    assert all(base.series(tag, name)[6] == value for name, (value, _) in figures.items())
    # A run that resumes there has nothing to do, and one that goes on starts from it.
    assert "did:" not in base.run(tag, "--num-iterations=6", "--save-every=4", before=tell_of_saves)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_is_saved_before_its_evaluations_and_gets_their_figures(ranks, base) -> None:
    """An evaluation that fails costs no step, and a run that resumes repeats none that was complete."""
    tag, flags = f"early-{ranks}", ("--num-iterations=8", "--save-every=4", "--eval-every=2")
    told = base.run(tag, *flags, ranks=ranks, before=tell_of_saves)
    assert re.findall(r"did: (\w+ \d+)", told) == ["save 4", "amend 4", "save 8", "amend 8"]
    for step in (4, 8):
        manifest = load(base.of(tag), step).manifest  # whole: its hash counts
        assert manifest["loop"]["evaluated"] == step
        assert manifest["loop"]["figures"]["last"]["val/bpb"][0] == base.series(tag, "val/bpb")[step]
    # One that is evaluated and not saved is no other run.
    base.run(f"plain-{ranks}", "--num-iterations=8", "--save-every=4", "--eval-every=-1", ranks=ranks)
    assert files_of(base.of(tag), 4) == files_of(base.of(f"plain-{ranks}"), 4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_last_step_that_could_not_be_saved_is_saved_again_after_its_evaluations(ranks, base) -> None:
    tag = f"again-{ranks}"
    failing = FailingSave(6, rank=ranks - 1)
    told = base.run(tag, "--num-iterations=6", "--save-every=4", ranks=ranks, before=failing)
    lines = [line for line in told.splitlines() if line.startswith(("did: ", "checkpoint: "))]
    assert lines[:2] == ["did: save 4", "did: save 6"]
    assert sorted(lines[2:4]) == [
        "checkpoint: step 6 is not saved: [Errno 28] No space left on device",  # printed by the thread that writes
        "did: amend 6",
    ]
    assert lines[4:] == ["checkpoint: saving step 6 again", "did: save 6"]
    assert load(base.of(tag), 6).manifest["loop"]["evaluated"] == 6
    plain = f"told-{ranks}"
    base.run(plain, "--num-iterations=6", "--save-every=4", ranks=ranks)
    assert files_of(base.of(tag), 6) == files_of(base.of(plain), 6)


def assert_near_straight(base: Base, tag: str) -> None:
    assert base.losses(tag) == pytest.approx(base.losses("straight"), abs=1e-4)
    mine, its = (load(base.of(name), STEPS).model_tensors() for name in (tag, "straight"))
    assert_close(mine, its, atol=1e-3, rtol=0)  # also where the first gradients are rounding


@contextlib.contextmanager
def command(base: Base, *words: str):
    """A process of a command line; whatever happens, it does not outlive the test."""
    # Bytecode is kept for the next process, also where Python is told to keep none: importing is most of a short run.
    ours = {"NANOCHAT_BASE_DIR": str(base.folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    env = {name: value for name, value in os.environ.items() if not name.startswith("NANOCHAT_")} | ours
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=env, start_new_session=True, **pipes)
    try:
        yield child
    finally:
        for pid in [child.pid, *children(child.pid)]:  # of a launcher: its ranks are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.communicate()


def children(pid: int):
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.exists() else []


def test_seven_and_six_and_seven_steps_are_twenty(base) -> None:
    for number, last in ((signal.SIGTERM, 7), (signal.SIGINT, 13)):
        said = base.run("parts", before=SignalAfter(last - 1, number))
        assert f"{signal.Signals(number).name}: stopping at the end of this step" in said
        assert said.splitlines()[-1] == f"stopped by a signal after step {last}: run the same command again to resume"
        assert saved_steps(base.of("parts"))[-1] == last
        assert not (base.of("parts") / "outcome.json").exists()
    base.run("parts", before=SignalAfter(STEPS, signal.SIGUSR1))  # too late to stop anything
    assert_as_straight(base, "parts")
    # The record has the seconds of all three.
    passed = [load(base.of("parts"), step).manifest["wall_seconds"] for step in (7, 13)]
    assert 0 < 1.2 * passed[0] < passed[1] < base.outcome("parts")["seconds"]


def test_a_second_signal_ends_at_once(base) -> None:
    job = base.start("twice", f"--total-batch-size={2**20}", before=impatient)
    until(lambda: "device batch" in job.out(), "the device batch")
    time.sleep(2)  # the only step has begun, and takes minutes
    job.signal(signal.SIGTERM)
    until(lambda: "SIGTERM: stopping at the end of this step" in job.out(), "its answer to the first signal")
    time.sleep(0.5)
    assert job.processes[0].is_alive()
    job.signal(signal.SIGTERM)
    assert job.codes(5) == [128 + signal.SIGTERM]
    assert saved_steps(base.of("twice")) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_compiled_and_in_bf16_too_parts_are_the_whole(ranks, base) -> None:
    flags, whole, parts = ("--compile", "--dtype=bf16"), f"compiled-{ranks}", f"compiled-parts-{ranks}"
    base.start(whole, *flags, ranks=ranks).done(140)  # seconds: it compiles
    base.start(parts, *flags, ranks=ranks, before=SignalAfter(6, signal.SIGTERM)).done(140)
    assert saved_steps(base.of(parts))[-1] == 7
    base.start(parts, *flags, ranks=ranks).done(140)
    assert base.losses(parts) == base.losses(whole) != base.losses("straight")
    assert files_of(base.of(parts)) == files_of(base.of(whole))


def test_the_command_itself_stopped_and_killed_at_random_moments(base, seed) -> None:
    chance = random.Random(seed)
    with command(base, "scripts.base_train", *base.flags("killed")) as child:
        base.wait_for("killed", chance.randrange(1, 6))
        child.send_signal(signal.SIGUSR1)
        said, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (0, "")
    stopped = int(re.search(r"stopped by a signal after step (\d+)", said)[1])
    assert saved_steps(base.of("killed"))[-1] == stopped
    for step in (stopped + chance.randrange(1, 6), 15):
        job = base.start("killed")
        base.wait_for("killed", step)
        time.sleep(chance.uniform(0, 0.03))
        job.signal(signal.SIGKILL)
        assert job.codes() == [-signal.SIGKILL]
    base.run("killed")
    assert_as_straight(base, "killed")


def test_a_run_saves_when_its_terminal_closes(base) -> None:
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
        os.environ |= {"NANOCHAT_BASE_DIR": str(base.folder), "OMP_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, "-m", "scripts.base_train", *base.flags("closed")])
    base.wait_for("closed", 5)
    os.close(terminal)  # SIGHUP, and every write to the terminal fails from now on
    assert os.waitpid(child, 0)[1] == 0
    assert 5 <= saved_steps(base.of("closed"))[-1] < STEPS
    base.run("closed")
    assert_as_straight(base, "closed")


def test_one_and_two_and_four_ranks(base) -> None:
    """The middle part under torchrun, where a signal to one rank stops both."""
    base.run("ranks", before=SignalAfter(6, signal.SIGTERM))
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "scripts.base_train", "--")
    with command(base, *launcher, *base.flags("ranks")) as child:
        base.wait_for("ranks", 10)
        ranks = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in children(child.pid)}
        os.kill(next(pid for pid, environ in ranks.items() if b"\0RANK=1\0" in environ), signal.SIGTERM)
        said, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    middle = int(re.search(r"stopped by a signal after step (\d+)", said)[1])
    assert 10 <= middle < STEPS
    manifest = load(base.of("ranks"), middle).manifest
    assert {"optimizer-00000.safetensors", "optimizer-00001.safetensors"} <= manifest["files"].keys()
    base.run("ranks", ranks=4)
    assert base.losses("ranks") != base.losses("straight")  # so they were other sums
    assert_near_straight(base, "ranks")
    sources = [load(base.of(tag), STEPS).manifest["source"] for tag in ("ranks", "straight")]
    assert sources[0] == sources[1]
    card = base.outcome("ranks")["metrics"]
    assert (card["DDP world size"], card["Tokens seen"]) == (4, STEPS * 256)


def test_sharded_weights_train_alike_and_resume_on_any_number_of_ranks(base) -> None:
    """Validation, samples and checkpoints have whole weights."""
    base.run("sharded", "--shard-weights", "--sample-every=5", ranks=4, before=SignalAfter(6, signal.SIGTERM))
    base.run("sharded", before=SignalAfter(10, signal.SIGTERM))
    base.run("sharded", "--shard-weights", "--checkpointing", ranks=2)
    assert_near_straight(base, "sharded")
    assert base.series("sharded", "val/bpb") == pytest.approx(base.series("straight", "val/bpb"), abs=1e-4)
    assert "--shard-weights needs several ranks" in base.refused("sharded", "--shard-weights")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="one GPU has no NCCL")
def test_gpus_train_alike_with_sharded_weights_and_name_a_killed_rank(base) -> None:
    for tag, *flags in (["whole-gpus"], ["sharded-gpus", "--shard-weights"]):
        base.run(tag, *flags, ranks=2)
        metrics = base.outcome(tag)["metrics"]
        print(tag, *(metrics[name] for name in ("Tokens per second", "Peak memory usage", "Communication not hidden")))
    assert base.losses("sharded-gpus") == pytest.approx(base.losses("whole-gpus"), abs=1e-3)
    job = base.start("killed-gpu", "--num-iterations=100000", "--eval-every=-1", "--save-every=-1", ranks=2)
    base.wait_for("killed-gpu", 2)
    job.signal(signal.SIGKILL, rank=1)
    job.processes[0].join(60)
    assert (job.processes[0].exitcode, "error: rank 1 on " in job.err()) == (1, True)
    job.kill()


def test_without_compile_the_compiler_is_not_imported(base) -> None:
    """It takes as long as torch itself, which every process would pay."""
    train, loss = base.flags("light", "--device-type=cpu"), ["--tag=light", "--eval-bytes=2000", "--device-type=cpu"]
    code = (
        "import runpy, sys, torch\nbefore = set(sys.modules)\n"
        f"for sys.argv in ['base_train', *{train!r}], ['base_loss', *{loss!r}]:\n"
        "    runpy.run_module('scripts.' + sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "slow = {'sympy', 'torch._dynamo', 'torch._inductor'}\n"
        "print('beside torch:', slow & (set(sys.modules) - before))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "NANOCHAT_BASE_DIR": str(base.folder)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert "beside torch: set()" in done.stdout, done.stderr
    assert "\nval bpb: " in done.stdout


def test_resume_never(base) -> None:
    folder = base.copy("straight", "forms")
    assert base.refused("forms", "--resume=soon").startswith("--resume: soon is not known, write auto, never, or")
    saved = saved_steps(folder)
    # A command that is refused gives nothing up.
    assert "255" in base.refused("forms", "--resume=never", "--total-batch-size=255")
    assert base.refused("forms", "--resume=never", "--data=/no/such/folder")
    assert saved_steps(folder) == saved
    assert (folder / "outcome.json").exists()
    base.run("forms", "--resume=never", before=SignalAfter(13, signal.SIGTERM))
    given_up = {path.name: (path / "manifest.json").exists() for path in folder.glob("given_up_*")}
    assert given_up == {f"given_up_step_{step:06d}": True for step in saved}
    assert "nothing is left to train" not in base.run("forms")  # not from 20, which was given up
    assert_as_straight(base, "forms")


def test_a_run_whose_loss_is_not_finite_goes_on_from_an_earlier_step_with_lower_rates(base) -> None:
    """The steps before stay, later checkpoints are set aside, and the change is written down."""
    folder = base.copy("straight", "diverging")
    steep = ("--resume=12", "--scalar-lr=1e38")
    sentence = base.refused("diverging", *steep, code=1)
    assert re.fullmatch(r"step 1[34]: the loss is .*", sentence)
    assert sentence.endswith(": go on with --resume=12 and lower rates, see docs/base_training.md")
    assert saved_steps(folder) == [3, 6, 9, 12]
    assert sorted(path.name for path in folder.glob("given_up_*")) == [f"given_up_step_{n:06d}" for n in (15, 18, 20)]
    assert not (folder / "outcome.json").exists()  # that of the steps that were given up

    gentle = ("--matrix-lr=0.0009", "--grad-clip=1", "--final-lr-frac=0.5")
    assert base.refused("diverging", "--resume=7", *gentle).endswith("give --resume one of these")
    assert "--seed was 42 and is 7" in base.refused("diverging", "--resume=9", "--seed=7")
    assert "--matrix-lr was 0.0018 and is 0.0009" in base.refused("diverging", *gentle)  # without a step
    said = base.run("diverging", "--resume=9", *gentle, before=SignalAfter(14, signal.SIGTERM))
    changes = "--matrix-lr 0.0018 -> 0.0009, --final-lr-frac 0.05 -> 0.5, --grad-clip 0.0 -> 1.0"
    assert f"resumed at step 9: {changes}\n" in said
    assert said.splitlines()[-1].endswith("after step 15: run the same command again with --resume=auto to resume")
    # From step 15. With the flags that the run began with, its changed settings stay; others are refused.
    assert "--matrix-lr was 0.0009 and is 0.001" in base.refused("diverging", "--matrix-lr=0.001")
    said = base.run("diverging")
    assert f"changed while training: step 9: {changes}\n" in said
    assert base.losses("diverging")[:9] == base.losses("straight")[:9]
    assert base.losses("diverging")[10:] != base.losses("straight")[10:]
    rates, usual = base.series("diverging", "train/lrm"), base.series("straight", "train/lrm")
    assert rates[9] == usual[9]
    assert rates[STEPS] > 0.5 > usual[STEPS]
    changed = {"matrix_lr": [0.0018, 0.0009], "final_lr_frac": [0.05, 0.5], "grad_clip": [0.0, 1.0]}
    logged = {f"{name}_{when}": pair[i] for name, pair in changed.items() for i, when in enumerate(("before", "after"))}
    assert [one for one in base.metrics("diverging") if one["kind"] == "settings"] == [
        {"kind": "settings", "step": 9, **logged}
    ]
    manifest = load(folder, STEPS).manifest
    assert manifest["changed_settings"] == [{"step": 9, "settings": changed}]
    assert manifest["config"]["matrix_lr"] == 0.0009
    metrics = base.outcome("diverging")["metrics"]
    assert metrics["Changed while training"] == f"step 9: {changes}"
    assert "Changed while training" not in base.outcome("straight")["metrics"]


def forget(folder: Path, name: str) -> None:
    """Let the checkpoints of a run be from before a flag."""
    for path in folder.glob("step_*/manifest.json"):
        change_manifest(path, lambda manifest: manifest["config"].pop(name))


def test_a_checkpoint_from_before_a_flag_resumes_with_the_flags_default(base) -> None:
    folder = base.copy("straight", "older")
    shutil.rmtree(folder / "step_000020")
    forget(folder, "final_lr_frac")
    refused = base.refused("older", "--final-lr-frac=0.5")
    assert refused.startswith(f"{folder} holds another run: --final-lr-frac was 0.05 and is 0.5. ")
    base.run("older")
    assert_as_straight(base, "older")


def test_another_configuration_is_refused_and_what_may_change_is_not(base) -> None:
    folder = base.copy("straight", "other")
    said = base.refused("other", "--matrix-lr=0.01", "--seed=7", "--save-every=5")
    assert said == (
        f"{folder} holds another run: --matrix-lr was 0.0018 and is 0.01; --seed was 42 and is 7. "
        "Use another --tag, or start again: --resume=never"
    )
    assert base.refused("other", "--matrix-lr=0.01") == (
        f"{folder} holds another run: --matrix-lr was 0.0018 and is 0.01. "
        "Use another --tag, change it from this step on: --resume=20, or start again: --resume=never"
    )
    shutil.rmtree(folder / "step_000020")
    base.run("other", "--save-every=5", "--device-batch-size=8", "--attention=twin", "--checkpointing")
    assert base.losses("other") == pytest.approx(base.losses("straight"), abs=1e-4)
    assert load(base.of("other"), STEPS).manifest["loop"]["device_batch"] == 8


def test_checkpoints_that_are_all_damaged_and_two_runs_of_one_tag(base) -> None:
    """test_checkpoint.py shows that an intact one before a damaged one is taken."""
    folder = base.copy("straight", "damaged")
    for manifest in folder.glob("step_*/manifest.json"):
        manifest.write_text(manifest.read_text().replace("base_train", "base_brain"))
    assert base.refused("damaged") == f"{folder} has checkpoints, but none is intact: --resume=never starts again"
    with hold(base.of("shared")):
        sentence = f"another process runs in {base.of('shared')}: wait until it ends, or use another --tag"
        assert base.refused("shared") == sentence
        assert base.refused("shared", ranks=2) == sentence


def test_a_run_that_has_ended_is_left_as_it_is(base) -> None:
    folder = base.copy("straight", "ended")
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = base.run("ended")
    assert said.splitlines()[-1] == "the run ended at step 20: nothing is left to train"
    assert "| loss:" not in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept
    (folder / "outcome.json").unlink()  # killed before it was written
    base.run("ended")
    assert (folder / "outcome.json").exists()


def test_room_is_looked_for_before_the_first_step(base) -> None:
    folder = base.copy("straight", "crowded")
    sentence = rf"{folder} has no room for the checkpoints of this run: ([\d.]+) MB needed, "
    said = base.refused("crowded", code=1, before=Room(1000))
    size = float(re.match(sentence, said)[1])  # of one, where all are kept
    assert base.metrics("crowded") == base.metrics("straight")
    # What is there is to go as others come.
    for step in (18, 20):
        shutil.rmtree(folder / f"step_{step:06d}")
    base.run("crowded", "--keep-last=2", before=Room(int(1.5e6 * size)))
    assert saved_steps(base.of("crowded")) == [18, 20]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_in_fp8_writes_samples(ranks, base) -> None:
    """They are written by the model packed for generation."""
    flags = ("--fp8", "--sample-every=2", "--num-iterations=4", "--eval-every=-1", *["--shard-weights"] * (ranks > 1))
    told = base.run(f"eighths-{ranks}", *flags, ranks=ranks, before=emulate_fp8)
    assert re.search("fp8: [1-9][0-9]* layers", told)
    assert len(re.findall("^sample: ", told, re.MULTILINE)) >= 2


def test_ranks_that_find_other_text_say_so(base) -> None:
    """Machines may have other files by one name; without a word they would train on two data sets."""
    places = [base.folder / f"machine-{number}" for number in range(2)]
    for number, place in enumerate(places):
        write_letters(place / "letters", 30 + number)
    said = base.refused("apart", "--data=letters", ranks=2, before=OwnFolders(*places))
    assert said.startswith("rank 1 finds other data than rank 0, they differ in data: let each machine have the same")
    assert not saved_steps(base.of("apart"))


def test_the_device_batch_is_tried_on_the_model_that_trains(monkeypatch) -> None:
    convert = fp8.convert
    monkeypatch.setattr(fp8, "convert", lambda model: convert(model, min_dim=32, emulated=True))

    def search(model, length, sizes, runtime):
        found.append((model.compiled, type(model.blocks[0].mlp.up), model.blocks[0].mlp.up.weight.grad is not None))
        model.blocks[0].mlp.up.weight.grad += 1  # left behind
        return 4

    found = []
    monkeypatch.setattr("nanochat.run.largest_device_batch", search)
    monkeypatch.setattr(runtime, "COMPILING_PAYS", 0.0)
    model, _, rows = build(start_of(replace(TINY, compile=True, fp8=True)), ALONE)
    assert found == [(True, fp8.Float8Linear, True)]
    assert rows == 4
    assert not model.blocks[0].mlp.up.weight.grad.any()
