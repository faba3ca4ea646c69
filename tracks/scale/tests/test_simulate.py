"""The simulation of many ranks, and pages that show figures of hardware."""

import re
from itertools import product

import numpy as np
import pytest
from conftest import ROOT, plant_world

from bench.common import required
from nanochat.cost import traffic
from nanochat.hardware import ACCELERATORS
from nanochat.log import markdown_table
from nanochat.scaling import plan_run
from scripts.base_train import Config
from tracks.scale import simulate as scale

# How an optimizer is built, and numbers of ranks with which no rank owns more than MOST_SHARES. Whole
# matrices are dealt to ranks: if their number is not a multiple of the ranks, some keep empty places.
BUILDS = [(scale.whole_weights, range(1, 9)), (scale.sharded_weights, (1, 3, 8, 27, 64))]


def test_all_ranks_together_read_the_stream_of_one_in_flat_memory(base, tiny_world, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(plant_world(base, tiny_world)))
    alone, [once] = scale.first_batch("world", 1)
    assert len(np.unique(alone, axis=0)) > 0.9 * len(alone)
    for ranks in (2, 3, 8, 64):
        batch, read = scale.first_batch("world", ranks)
        assert np.array_equal(batch, alone)
        assert max(read) <= once
    first, *_, last = required(scale.peaks, "world", 1e6)
    assert last - first < 50  # MB


@pytest.mark.parametrize(("build", "numbers"), BUILDS)
def test_bytes_of_ranks_grow_at_most_linearly(build, numbers) -> None:
    smaller = None
    for depth in (8, 9, 20, 40):
        shape = scale.shape_of(depth)
        assert max(scale.shares(shape, ranks, build) for ranks in numbers) < scale.MOST_SHARES
        few, many = scale.bytes_of(shape, 8, build), scale.bytes_of(shape, 64, build)
        assert all(many[key] <= 8 * few[key] for key in few)
        if smaller:  # with the parameters
            factor = scale.MOST_SHARES * many["saved"] / smaller["saved"]
            assert all(many[key] < factor * smaller[key] for key in few)
        smaller = many


def test_a_dry_run_counts_the_traffic_of_sharded_weights() -> None:
    for depth, ranks in product((8, 24), (2, 8, 64)):
        plan = plan_run(Config(depth=depth, total_batch_size=2_048 * ranks), 32_768)
        received, _ = traffic(plan, rows=1, ranks=ranks, itemsize=2)
        assert received == pytest.approx(scale.bytes_of(plan.model, ranks, scale.sharded_weights)["sent"], rel=1e-4)


def test_whole_matrices_are_no_equal_shares_for_more_ranks() -> None:
    cases = (10, 9), (8, 64), (9, 64), (24, 64), (40, 64)
    found = [scale.shares(scale.shape_of(depth), ranks) for depth, ranks in cases]
    assert found == pytest.approx([1.105, 1.715, 1.725, 1.478, 1.248], abs=0.001)


def test_the_page_has_the_figures_of_the_table_of_hardware() -> None:
    assert markdown_table(scale.hardware_table()) in (ROOT / "tracks/scale/many_gpus.md").read_text(encoding="utf-8")
    # 28 hours become 4, at 98 dollars an hour: 24 hours are saved for 392 dollars.
    assert scale.worth(98, 28 / 4) == pytest.approx(392 / 24)


def test_no_measured_line_names_a_gpu_without_commit_and_driver() -> None:
    names = "|".join(accelerator.name.removeprefix("RTX-") for accelerator in ACCELERATORS)
    for line in (ROOT / "dev/MEASURED.md").read_text(encoding="utf-8").splitlines():
        if re.search(rf"(?:\b|\d ?[x×])({names})s?\b", line):
            assert re.search(r"`[0-9a-f]{7,40}`.*\bdriver \d+\.\d+", line), line
