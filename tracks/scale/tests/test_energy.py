"""The energy of a GPU. Its driver is played: there is none here."""

import time

import pytest
import torch
from loop_parts import ALONE

from tracks.scale import energy as under_test
from tracks.scale.energy import watch_gpu


def test_the_energy_of_a_gpu(monkeypatch, capsys) -> None:
    """Its driver is played: there is none here, which is the second case."""
    monkeypatch.setattr(under_test, "SAMPLE_SECONDS", 0.01)
    gpu = torch.device("cuda")
    with monkeypatch.context() as driver:
        driver.setattr(torch.cuda, "power_draw", lambda device: 350_000)
        driver.setattr(torch.cuda, "utilization", lambda device: 80)
        with watch_gpu(gpu) as take, watch_gpu(ALONE.device) as without:
            time.sleep(0.5)
            joules, computing, seconds = take()
            assert 0.01 < seconds < 60
            assert (joules, computing) == (pytest.approx(350 * seconds), pytest.approx(0.8 * seconds))
            assert without() is None
    if not torch.cuda.is_available():
        with watch_gpu(gpu) as take:
            time.sleep(0.5)
            assert take() is None
        assert "energy: n/a, " in capsys.readouterr().out
