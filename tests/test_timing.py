"""Times beside training steps: pauses are counted as the loop makes them, and generation as it was measured."""

import pytest

from nanochat.timing import Pace, Pause
from nanochat.train import Evaluation, State


@pytest.mark.parametrize("every", [-1, 0, 1, 3, 5, 10, 99])
@pytest.mark.parametrize("at_start", [False, True])
def test_pauses_are_counted_as_the_loop_makes_them(every, at_start) -> None:
    evaluation = Evaluation(every, lambda state: None, at_start)
    due = [evaluation.is_due(State(step=step), step == 10) for step in range(11)]
    assert Pause("", every, at_start).times(10) == sum(due)


def test_generation_takes_as_long_as_was_measured() -> None:
    """dev/MEASURED.md: "On one GPU" at depth 12, "Generation on a CPU" at 50 GFLOP/s and 73 MFLOP a token."""
    gpu = Pace(12, 1e9, 4e14, 1, on_gpu=True)
    assert 1 / gpu.sampling(1, 1) == pytest.approx(1103, rel=0.02)
    assert 32 / gpu.sampling(32, 1) == pytest.approx(26_108, rel=0.02)
    assert gpu.sampling(512, 10) == 2 * gpu.sampling(256, 10)  # more do not fit side by side
    cpu = Pace(6, 73e6, 5e10, 1, on_gpu=False)
    assert 1 / cpu.sampling(1, 1) == pytest.approx(214, rel=0.02)
    assert 32 / cpu.sampling(32, 1) == pytest.approx(1522, rel=0.02)
    assert Pace(6, 73e6, 2e11, 1, on_gpu=False).sampling(1, 1) == cpu.sampling(1, 1)
    assert Pace(6, 73e6, 2e12, 1, on_gpu=False, cores=8).sampling(1, 1) == pytest.approx(cpu.sampling(1, 1) / 4)
    assert Pace(6, 73e6, 1e10, 1, on_gpu=False).sampling(1, 1) == pytest.approx(5 * cpu.sampling(1, 1))
