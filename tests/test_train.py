"""The training loop: the same mathematics however a step is cut and shared, where it ends, its hooks, its faults."""

import copy
import math
import os
import re
import signal
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import loop_parts
import pytest
import torch
from forks import Forked
from loop_parts import AHEAD, ALONE, EXACT, LENGTH, ROWS, Rows, furthest, plant, small_model, train, uneven
from safetensors.torch import load_file

from nanochat import schedules
from nanochat import train as loop
from nanochat.attention import PATHS
from nanochat.log import read_metrics
from nanochat.objectives import Metric, maximum, next_token
from nanochat.paths import read_json
from nanochat.runtime import setup
from nanochat.settings import OptimizerSettings

BOTH = pytest.mark.parametrize("runtime", [ALONE, AHEAD], ids=["in step", "ahead"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """3 steps of all rows at once."""
    return train(tmp_path_factory.mktemp("plain"))


def test_a_step_is_that_of_plain_autograd(tmp_path) -> None:
    model, (inputs, targets) = small_model(), next(Rows(ALONE, uneven))
    loss = model(inputs, targets) / (targets >= 0).sum()
    loss.backward()
    norm = torch.nn.utils.get_total_norm(p.grad for p in model.parameters())
    for size in (1, 8):
        record = train(tmp_path / f"{size}", device_batch=size, source=Rows(ALONE, uneven), steps=1).records[0]
        assert record["train/loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert record["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


@BOTH
def test_what_is_not_finite_is_told_with_its_own_step(runtime, tmp_path) -> None:
    source, steps = Rows(), []
    spoilt = loop_parts.spoilt(source, math.inf)
    evaluations = [loop.Evaluation(3, lambda state: steps.append(state.step))]
    with pytest.raises(FloatingPointError, match=r"^step 2: the loss is inf, the gradient's norm is "):
        train(tmp_path, runtime, objective=spoilt, source=source, evaluations=evaluations)
    assert steps == []
    written = [(record["kind"], record["step"]) for record in read_metrics(tmp_path / "metrics.jsonl")]
    assert written == [("train", 1), ("diverged", 2)]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_halves_the_device_batch(where, tmp_path, plain, capsys) -> None:
    limit = {"rows": 4}

    def check(x):
        if len(x) > limit["rows"]:
            raise torch.OutOfMemoryError("planted")
        return x

    def objective(model, batch):
        limit["rows"] = 1 if source.taken == 3 else 4
        if where == "forward":
            check(batch[0])
        return next_token(model, batch)

    source = Rows()
    model = plant(small_model(), check if where == "backward" else lambda gradient: gradient)
    trained = train(tmp_path / "some", model=model, objective=objective, source=source)
    assert furthest(trained.parameters, plain.parameters) < EXACT
    assert (trained.state.device_batch, source.taken, trained.state.tokens) == (1, 3, 3 * ROWS * LENGTH)
    told = re.findall(r"^step (\d), rank 0: out of memory, .* --device-batch-size=(\d)$", capsys.readouterr().out, re.M)
    assert told == [("1", "4"), ("3", "2"), ("3", "1")]
    limit["rows"] = 0
    with pytest.raises(ValueError, match=r"^step 1, rank 0: out of memory with one row at once: use --checkpointing"):
        train(tmp_path / "none", objective=lambda model, batch: check(batch[0]), device_batch=2)


@BOTH
def test_the_loss_scale_falls_and_grows(runtime, tmp_path, plain, monkeypatch) -> None:
    monkeypatch.setattr(loop, "GROW_LOSS_SCALE_EVERY", 4)
    source, state, scales = Rows(), loop.State(), []

    def overflow(gradient):
        return gradient * (math.inf if state.loss_scale > (1 / 4 if state.step < 3 else 2) else 1.0)

    evaluations = [loop.Evaluation(1, lambda state: scales.append(state.loss_scale))]
    options = {"model": plant(small_model(), overflow), "source": source, "state": state, "evaluations": evaluations}
    trained = train(tmp_path / "half", replace(runtime, dtype=torch.float16), steps=18, **options)
    assert scales == [1 / 4] * 4 + [1 / 2] * 4 + [1.0] * 4 + [2.0] * 6
    assert source.taken == 18
    assert furthest(trained.parameters, train(tmp_path / "single", steps=18).parameters) < EXACT
    with pytest.raises(FloatingPointError, match=r"step 1: .* the gradient's norm is (nan|inf)"):
        train(tmp_path / "bad", replace(ALONE, dtype=torch.float16), model=plant(small_model(), lambda g: g / 0))


@BOTH
def test_horizons(runtime, tmp_path, capsys) -> None:
    falling = schedules.pretraining(OptimizerSettings(warmup_steps=0, warmdown_ratio=1.0, final_lr_frac=0.0))
    by_source = train(tmp_path / "source", runtime, steps=None, source=Rows(batches=5), schedules=falling)
    assert (by_source.state.step, by_source.source.taken) == (5, 5)
    assert "\nstep 00005 (100.00%) | " in capsys.readouterr().out  # of an unknown number
    assert [record["train/lrm"] for record in by_source.records] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    slept = []
    evaluations = [loop.Evaluation(1, lambda state: slept.append(time.sleep(0.1)), at_start=True)]
    by_time = train(tmp_path / "time", runtime, seconds=0.12, evaluations=evaluations)
    overshot = sum(record["train/dt"] for record in by_time.records[-2:])  # a step may be under way already
    assert by_time.state.seconds - overshot < 0.12 <= by_time.state.seconds  # of training alone
    assert sum(record["train/dt"] for record in by_time.records) == pytest.approx(by_time.state.seconds)
    assert len(slept) == by_time.state.step + 1


def measuring(model, batch):
    """Measure one quantity in each of the ways that there are: the rows, numbered within the micro-batch."""
    numbers = torch.arange(1.0, len(batch[0]) + 1)
    count = torch.tensor(len(numbers))
    metrics = {
        "rows/mean": Metric(numbers.sum(), count),
        "rows/largest": maximum(numbers.max()),
        "rows/all": Metric(numbers.sum(), count, "sum"),
        "rows/rms": Metric(numbers.square().sum(), count, "root mean square"),
    }
    return next_token(model, batch)._replace(metrics=metrics)


@BOTH
def test_measured_quantities_are_joined_as_they_say(runtime, tmp_path, plain) -> None:
    trained = train(tmp_path, runtime, objective=measuring, device_batch=2)
    assert furthest(trained.parameters, train(tmp_path / "again", runtime, device_batch=2).parameters) == 0
    for record, alone in zip(trained.records, plain.records, strict=True):
        assert record["train/loss"] == pytest.approx(alone["train/loss"], rel=1e-6)
        found = [record[f"rows/{name}"] for name in ("mean", "largest", "all", "rms")]
        assert found == pytest.approx([1.5, 2.0, 12.0, math.sqrt(2.5)])  # four micro-batches of rows 1 and 2


@BOTH
def test_an_objective_sees_step_and_progress(runtime, tmp_path) -> None:
    seen = []

    class Curious:
        def at(self, moment):
            seen.append((moment.step, moment.progress))
            return next_token

    train(tmp_path, runtime, objective=Curious(), device_batch=2, steps=4)
    assert seen == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]  # once a step, whatever its micro-batches


def test_the_learning_rate_falls_by_the_clock_on_a_machine_that_slows_down(tmp_path) -> None:
    """After 8 steps each step takes five times as long: the warmdown is still the last 0.65 of the clock.

    Three seconds, so that other work on the machine takes no large part of them.
    """
    batches = count()

    def slower(model, batch):
        time.sleep(0.05 if next(batches) < 8 else 0.25)
        return next_token(model, batch)

    settings = OptimizerSettings(warmup_steps=0)
    train(tmp_path / "first", steps=1)  # the first step of a process takes long
    records = train(tmp_path, seconds=3, objective=slower, schedules=schedules.pretraining(settings)).records
    clock = [0.0] + [record["total_training_time"] / 3 for record in records]
    assert records[-1]["train/lrm"] < 0.5 < records[0]["train/lrm"] == 1
    for record, progress in zip(records, clock, strict=False):
        falls = settings.final_lr_frac + (1 - settings.final_lr_frac) * min(1, (1 - progress) / settings.warmdown_ratio)
        assert record["train/lrm"] == pytest.approx(min(1, falls), abs=1e-6)


class Acts(list):
    """Evaluations and a save that note (name, step)."""

    def note(self, name):
        return lambda state: self.append((name, state.step))

    def evaluation(self, name, every, at_start=False):
        return loop.Evaluation(every, self.note(name), at_start)

    def save(self, state) -> None:
        self.append(("save", state.step))


@BOTH
def test_evaluations_run_when_due_and_the_checkpoint_is_saved_last(runtime, tmp_path) -> None:
    acts = Acts()
    evaluations = [acts.evaluation("text", 2, at_start=True), acts.evaluation("end", 0), acts.evaluation("never", -1)]
    trained = train(tmp_path, runtime, steps=7, evaluations=evaluations, save=acts.save, save_every=3)
    # Saved before too: an evaluation that fails must not cost the steps before it.
    at_the_end = [("save", 7), ("text", 7), ("end", 7), ("save", 7)]
    due = [("text", 0), ("text", 2), ("save", 3), ("text", 4), ("save", 6), ("text", 6), ("save", 6), *at_the_end]
    assert acts == due
    assert trained.state.progress == 1
    # A run that resumes: evaluations that were complete do not run again; postponed ones do, and those that failed.
    for step, evaluated, again in ((6, 6, at_the_end), (6, 5, due[-6:]), (7, 6, at_the_end[1:]), (7, 7, [])):
        acts.clear()
        state = replace(trained.state, step=step, evaluated=evaluated)
        folder = tmp_path / f"{step} {evaluated}"
        resumed = train(folder, runtime, steps=7, evaluations=evaluations, save=acts.save, save_every=3, state=state)
        assert (acts, resumed.source.taken, len(resumed.records)) == (again, 7 - step, 7 - step)


@BOTH
def test_an_evaluation_ends_the_run(runtime, tmp_path) -> None:
    """The last evaluations and a checkpoint follow, as at the horizon."""
    acts = Acts()

    def end(state) -> None:
        acts.append(("check", state.step))
        if state.step == 4:
            state.notes[loop.ENDED] = "it is enough"

    evaluations = [acts.evaluation("text", 4), loop.Evaluation(2, end), acts.evaluation("end", 0)]
    trained = train(tmp_path, runtime, steps=9, evaluations=evaluations, save=acts.save)
    at_the_end = [("text", 4), ("check", 4), ("end", 4), ("save", 4)]
    assert acts == [("check", 2), ("text", 4), ("check", 4), ("save", 4), *at_the_end]
    assert (trained.state.step, trained.state.progress, trained.state.stop) == (4, 1, "")
    assert trained.source.taken == 4
    again = train(tmp_path / "again", runtime, steps=9, evaluations=evaluations, state=trained.state)
    assert again.source.taken == 0


@BOTH
@pytest.mark.parametrize("every", [1, 5])
def test_a_signal_stops_after_the_step_and_saves(runtime, every, tmp_path) -> None:
    source, acts = Rows(), Acts()

    def ask(model, batch):
        if source.taken == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return next_token(model, batch)

    evaluations = [acts.evaluation("text", every)]
    state = train(tmp_path, runtime, steps=9, objective=ask, source=source, evaluations=evaluations, save=acts.save)
    state = state.state
    assert state.stop == "a signal"
    assert state.step == source.taken == (4 if runtime is AHEAD and every == 5 else 3)
    assert acts[-1] == ("save", state.step)
    assert acts.count(acts[-1]) == 1
    assert ("text", state.step) not in acts  # postponed to the resumed run
    assert state.evaluated < state.step


class Fours(Rows):
    """Four batches belong together: no checkpoint is saved between them."""

    @property
    def may_be_saved(self) -> bool:
        return self.taken % 4 == 0


@BOTH
def test_a_checkpoint_and_a_stop_wait_for_the_source(runtime, tmp_path) -> None:
    acts = Acts()
    train(tmp_path / "whole", runtime, steps=14, source=Fours(), save_every=3, save=acts.save)
    # Due at 3, 6, 9 and 12.
    assert acts == [("save", 4), ("save", 8), ("save", 12), ("save", 14)]
    source, acts = Fours(), Acts()

    def ask(model, batch):
        if source.taken == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return next_token(model, batch)

    evaluations = [acts.evaluation("text", 6)]
    trained = train(tmp_path, runtime, steps=14, objective=ask, source=source, evaluations=evaluations, save=acts.save)
    assert (trained.state.step, trained.state.stop) == (8, "a signal")
    assert acts == [("text", 6), ("save", 8)]  # at step 6 the run goes on, so it is evaluated


@BOTH
def test_the_last_evaluations_are_not_lost_by_a_kill(runtime, tmp_path) -> None:
    """They follow those of the same step, one of which has ended the run."""
    acts, saved = Acts(), []

    def end(state) -> None:
        if state.step == 4:
            state.notes[loop.ENDED] = "it is enough"

    def die(state) -> None:
        raise KeyboardInterrupt

    def save(state) -> None:
        saved.append(copy.deepcopy(state))

    early = loop.Evaluation(2, end)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, runtime, steps=9, evaluations=[early, loop.Evaluation(0, die)], save=save)
    assert (saved[-1].step, saved[-1].progress) == (4, 1)
    evaluations = [early, acts.evaluation("end", 0)]
    again = train(tmp_path / "again", runtime, steps=9, evaluations=evaluations, state=saved[-1])
    assert (acts, again.source.taken) == ([("end", 4)], 0)


@BOTH
def test_an_early_end_and_a_clock_wait_for_the_source(runtime, tmp_path) -> None:
    """A number of steps is met exactly, see above."""
    acts = Acts()

    def end(state) -> None:
        state.notes[loop.ENDED] = "it is enough"

    evaluations = [loop.Evaluation(6, end), acts.evaluation("end", 0)]
    trained = train(tmp_path / "ended", runtime, steps=14, source=Fours(), evaluations=evaluations, save=acts.save)
    assert (trained.state.step, trained.state.progress) == (8, 1)
    assert acts == [("save", 8), ("end", 8), ("save", 8)]
    trained = train(tmp_path / "clock", runtime, steps=None, seconds=1e-9, source=Fours())
    assert trained.state.step in (4, 8)  # a GPU's clock is read a step later


def test_the_console_and_the_file(tmp_path, capsys) -> None:
    trained = train(tmp_path / "unknown", steps=2)
    line = capsys.readouterr().out.splitlines()[-1]
    number = r"[\d,]+"
    assert re.fullmatch(
        rf"step 00002/00002 \(100\.00%\) \| loss: \d\.\d{{4}} \| lrm: 0\.05 \| dt: {number}ms \| tok/sec: {number} "
        r"\| mfu: n/a \| wait: \d+\.\d% \| total time: \d+\.\ds \| eta: 0\.0s",
        line,
    )
    losses = [record["train/loss"] for record in trained.records]
    assert f"loss: {(0.9 * 0.1 * losses[0] + 0.1 * losses[1]) / (1 - 0.9**2):.4f} " in line
    assert trained.records[1]["total_training_flops"] == 2 * ROWS * LENGTH * 1e6 == trained.state.flops


def test_the_largest_device_batch(monkeypatch) -> None:
    model = small_model()
    for tokens, size in ((100, 2), (8 * LENGTH, 8), (9 * LENGTH, 8), (1, 1)):
        monkeypatch.setattr(loop, "CPU_TOKENS", tokens)
        assert loop.largest_device_batch(model, LENGTH, [1, 2, 4, 8, 16], ALONE) == size
    row = 4 * LENGTH * model.config.width * model.config.depth * loop.LEAST_KEPT  # bytes
    for limit, room, fit, tries in ((3, 2**40, 2, [16, 8, 4, 2]), (16, 2**40, 16, [16]), (3, 8 * row, 2, [4, 2])):
        monkeypatch.setattr(loop, "free_memory", lambda device, room=room: room)
        monkeypatch.setattr(loop, "MEMORY_MARGIN", 0.0)
        tried, forgotten = [], []
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forgotten.append)

        def check(net, given, limit=limit, tried=tried) -> None:  # where it is tried
            tried.append(len(given[0]))
            if len(given[0]) > limit:
                raise torch.OutOfMemoryError("planted")

        with model.register_forward_pre_hook(check):
            assert loop.largest_device_batch(model, LENGTH, [1, 2, 4, 8, 16], AHEAD) == fit
        assert tried == tries
        assert forgotten == [AHEAD.device]  # the peak is that of training


def test_nothing_is_compiled_again_after_step_3(tmp_path) -> None:
    model, compiled = small_model(), []
    for block in model.blocks:
        block.compile(backend="eager")  # guards, and what breaks them, are the same for each

    def evaluate(state) -> None:
        model(*next(Rows()), reduction="none")
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    torch._dynamo.reset()
    evaluations = [loop.Evaluation(2, torch.no_grad()(evaluate), at_start=True)]
    train(tmp_path, model=model, device_batch=4, evaluations=evaluations, steps=8)
    assert compiled[0] > 0
    assert compiled[2:] == [compiled[2]] * 3


@pytest.mark.parametrize("broken", [False, True])
def test_a_block_that_breaks_its_graph_is_told_after_the_first_step(tmp_path, capsys, monkeypatch, broken) -> None:
    """An attention kernel that the compiler cannot follow would break each block, and nothing else would show it."""
    model = small_model()
    if broken:
        chunks = PATHS["chunks"]

        def attend(*arguments) -> torch.Tensor:
            torch._dynamo.graph_break()
            return chunks(*arguments)

        monkeypatch.setitem(PATHS, "chunks", attend)
    for block in model.blocks:
        block.compile(backend="eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    train(tmp_path, model=model, device_batch=4, steps=2)
    pattern = "^compiler: [0-9]+ graph breaks, which make steps slower: .+$"
    told = re.findall(pattern, capsys.readouterr().out, re.MULTILINE)
    assert bool(told) == broken


class Prepared(Rows):
    """On the device already, as the text loader brings its batches there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        rows = Rows()
        self.ready = [tuple(part.to(device) for part in next(rows)) for _ in range(8)]

    def __next__(self):
        self.taken += 1
        return self.ready[self.taken - 1]


@pytest.mark.gpu
def test_a_step_never_waits_for_the_gpu_nor_is_compiled_again(tmp_path) -> None:
    with setup("cuda") as runtime:
        model = small_model(runtime)
        model.compile_parts()

        def forbid(state) -> None:
            torch.cuda.set_sync_debug_mode("error")
            torch.compiler.set_stance("fail_on_recompile")

        forbids = [loop.Evaluation(3, forbid)]
        try:
            train(tmp_path, runtime, model=model, source=Prepared(runtime.device), evaluations=forbids, steps=8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.compiler.set_stance("default")


COUNT = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The folder with the models, what each rank saw, and the job."""
    folder = tmp_path_factory.mktemp("ranks")
    job = Forked(folder / "out", loop_parts.main, folder, ranks=COUNT)
    job.done(240)
    seen = [read_json(folder / f"{rank}.json") for rank in range(COUNT)]
    return SimpleNamespace(folder=folder, seen=seen, job=job)


def test_the_number_of_ranks_does_not_matter(ranks, plain, tmp_path) -> None:
    masked = train(tmp_path / "masked", source=Rows(ALONE, uneven), grad_clip=0.1)
    assert min(record["train/grad_norm"] for record in masked.records) > 0.1  # so it was clipped
    few = train(tmp_path / "few", objective=loop_parts.skipping, source=Rows(ALONE, loop_parts.every_other))
    measured = train(tmp_path / "measured", objective=loop_parts.numbered)
    twins = {"plain": plain, "masked": masked, "skipping": few, "measured": measured}
    models = list(ranks.folder.glob("*.safetensors"))
    seen = [path.stem for path in models if path.stem.split()[0] in twins]
    assert len(seen) == 5
    for case in seen:
        twin = twins[case.split()[0]]
        assert furthest(load_file(ranks.folder / f"{case}.safetensors"), twin.parameters) < EXACT, case
        records = read_metrics(ranks.folder / case / "metrics.jsonl")
        for record, alone in zip(records, twin.records, strict=True):
            for name in ("train/loss", "train/grad_norm"):
                assert record[name] == pytest.approx(alone[name], rel=1e-5)
            for name in ("first/largest", "first/all"):
                assert record.get(name) == alone.get(name)
        assert {seen[case]["tokens"] for seen in ranks.seen} == {3 * ROWS * LENGTH}


def test_ranks_end_by_one_clock_and_a_step_that_teaches_nothing_leaves_the_weights_alone(ranks, tmp_path) -> None:
    ends = {(seen["clock"]["step"], seen["clock"]["seconds"]) for seen in ranks.seen}
    assert len(ends) == 1
    assert min(ends)[1] >= 0.3
    assert all(one["idle"]["unchanged"] == [True, False, True, False] for one in ranks.seen)
    alone = train(tmp_path, source=Rows(ALONE, idle=[1, 3]), steps=4)
    assert furthest(load_file(ranks.folder / "idle.safetensors"), alone.parameters) < EXACT
    told = [(record["step"], record["train/loss"], record["train/grad_norm"]) for record in alone.records]
    assert [step for step, loss, norm in told if loss == norm == 0] == [1, 3]


def test_faults_of_one_rank_are_met_by_all(ranks, plain) -> None:
    """In half precision one rank overflows and runs out of memory, and all end as in single precision."""
    for case in ("nan loss", "infinite gradient"):
        seen = [seen[case] for seen in ranks.seen]
        assert len({one["error"] for one in seen}) == 1
        assert re.match("step 2: the loss is .*(nan|inf)", seen[0]["error"])
        assert all(one["steps"] == [0, 1] for one in seen)  # no hook saw the step
    for at in (1, 3):
        case = f"out of memory {at}"
        assert furthest(load_file(ranks.folder / f"{case}.safetensors"), plain.parameters) < EXACT
        sizes = [seen[case]["device_batch"] for seen in ranks.seen]
        assert sizes == [ROWS] * (COUNT - 1) + [ROWS // COUNT // 2]
        told = f"step {at}, rank {COUNT - 1}: out of memory, the step starts again with --device-batch-size={sizes[-1]}"
        assert told in ranks.job.out(COUNT - 1).splitlines()
    seen = [seen["half precision"] for seen in ranks.seen]
    assert all((one["loss_scale"], one["taken"]) == (1 / 8, 3) for one in seen)
    assert furthest(load_file(ranks.folder / "half precision.safetensors"), plain.parameters) < EXACT
