"""The training loop on 2 and 4 ranks, real processes: the same model, and what one of them meets concerns all."""

import json
import re
from types import SimpleNamespace

import pytest
from forks import Forked
from loop_parts import ALONE, EXACT, LENGTH, ROWS, Rows, every_other, furthest, skipping, small_model, train, uneven
from loop_rank import main as all_cases
from safetensors.torch import load_file

from nanochat.log import read_metrics
from nanochat.objectives import DeepSupervision

COUNT = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The folder with the models, what each rank saw, and the job."""
    folder = tmp_path_factory.mktemp("ranks")
    job = Forked(folder / "out", all_cases, folder, ranks=COUNT)
    job.done(240)
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(COUNT)]
    return SimpleNamespace(folder=folder, seen=seen, job=job)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """3 steps of all rows at once."""
    return train(tmp_path_factory.mktemp("plain"))


def test_the_number_of_ranks_does_not_matter(ranks, plain, tmp_path):
    masked = train(tmp_path / "masked", source=Rows(ALONE, uneven), grad_clip=0.1)
    assert min(record["train/grad_norm"] for record in masked.records) > 0.1  # so it was clipped
    few = train(tmp_path / "few", objective=skipping, source=Rows(ALONE, every_other))
    options = {"objective": DeepSupervision(5.0, 1.0), "source": Rows(ALONE, uneven)}
    deep = train(tmp_path / "deep", model=small_model(supervision=3), **options)
    twins = {"plain": plain, "masked": masked, "skipping": few, "deep": deep}
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
        assert {seen[case]["tokens"] for seen in ranks.seen} == {3 * ROWS * LENGTH}


def test_a_step_that_teaches_nothing_leaves_the_weights_alone(ranks, tmp_path):
    assert all(one["idle"]["unchanged"] == [True, False, True, False] for one in ranks.seen)
    alone = train(tmp_path, source=Rows(ALONE, idle=[1, 3]), steps=4)
    assert furthest(load_file(ranks.folder / "idle.safetensors"), alone.parameters) < EXACT
    told = [(record["step"], record["train/loss"], record["train/grad_norm"]) for record in alone.records]
    assert [step for step, loss, norm in told if loss == norm == 0] == [1, 3]


def test_what_is_not_finite_on_one_rank_stops_all(ranks):
    for case in ("nan loss", "infinite gradient"):
        seen = [seen[case] for seen in ranks.seen]
        assert len({one["error"] for one in seen}) == 1
        assert re.match("step 2: the loss is .*(nan|inf)", seen[0]["error"])
        assert all(one["steps"] == [0, 1] for one in seen)  # no hook saw the step


def test_out_of_memory_on_one_rank(ranks, plain):
    for at in (1, 3):
        case = f"out of memory {at}"
        assert furthest(load_file(ranks.folder / f"{case}.safetensors"), plain.parameters) < EXACT
        sizes = [seen[case]["device_batch"] for seen in ranks.seen]
        assert sizes == [ROWS] * (COUNT - 1) + [ROWS // COUNT // 2]
        told = f"step {at}, rank {COUNT - 1}: out of memory, the step starts again with --device-batch-size={sizes[-1]}"
        assert told in ranks.job.out(COUNT - 1).splitlines()


def test_half_precision_on_ranks(ranks, plain):
    """One rank overflows and runs out of memory: all go through the step together, and end as in single precision."""
    seen = [seen["half precision"] for seen in ranks.seen]
    assert all((one["loss_scale"], one["taken"]) == (1 / 8, 3) for one in seen)
    assert furthest(load_file(ranks.folder / "half precision.safetensors"), plain.parameters) < EXACT


def test_ranks_end_by_one_clock(ranks):
    ends = {(seen["clock"]["step"], seen["clock"]["seconds"]) for seen in ranks.seen}
    assert len(ends) == 1
    assert min(ends)[1] >= 0.3
