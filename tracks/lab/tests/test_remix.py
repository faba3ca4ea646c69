"""remix.toml, the study of options: every mixture can be read, every benchmark has a verdict."""

from itertools import chain

import pytest
from conftest import ROOT

from tasks import JUDGED, TASKS
from tasks.mixing import parse_mixture


def test_every_mixture_of_the_study_of_options_is_one() -> None:
    for track in ("benchmarks.sets", "chatdata.augmented"):
        pytest.importorskip(f"tracks.{track}")
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    study = tomllib.loads((ROOT / "tracks/lab/remix.toml").read_text(encoding="utf-8"))
    found = [name for spec in study["mixes"].values() for one in parse_mixture(spec, TASKS) for name in one.sources]
    assert {"KMMLU", "KMMLU~styles", "KMMLU~options:10"} <= set(found)
    assert set(chain(*study["benchmarks"].values())) <= set(JUDGED)
