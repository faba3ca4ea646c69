"""The specs of the track: every mixture can be read, and every benchmark has a verdict."""

import pytest
from committed_cards import LABELS
from conftest import ROOT

from tasks import JUDGED, TASKS
from tasks.mixing import parse_mixture
from tracks.lab.kinds import flag_mistakes, has
from tracks.lab.sweep import BPB, CHAT_STAGES, mistakes, read_spec

SPECS = sorted((ROOT / "tracks/lab/specs").glob("*.toml"))


@pytest.fixture(autouse=True)
def _tracks() -> None:
    for track in ("benchmarks.sets", "chatdata.augmented"):
        pytest.importorskip(f"tracks.{track}")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_can_be_read(path) -> None:
    spec = read_spec(path)
    if spec.stage == "chat_dpo":
        pytest.importorskip("tracks.preferences")
    for words in spec.mixes.values() if spec.stage in CHAT_STAGES else ():
        members = parse_mixture(words, TASKS)
        assert all(has(members, least) for least in spec.minimal)
    assert {name for name in spec.tasks if not name.startswith("world_")} <= {*JUDGED, *LABELS, BPB}
    assert flag_mistakes(spec) == []
    # Only the bases are not here.
    absent = "the tokenizer default is not in" if spec.is_pretraining else "has no checkpoint"
    assert [line for line in mistakes(spec) if absent not in line] == []


@pytest.mark.parametrize("name", ["remix", "remix_small"])
def test_what_a_study_keeps_is_confirmed_on_other_seeds(name: str) -> None:
    spec = read_spec(ROOT / f"tracks/lab/specs/{name}.toml")
    assert len(spec.confirm_seeds) >= 2
    lines = (ROOT / f"tracks/lab/specs/{name}.toml").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith("confirm_seeds")]
    most = len(spec.confirming_runs)
    assert f"up to {most} runs more" in line or ("as many runs again" in line and most == len(spec.runs))


def test_the_study_of_options_has_its_arms() -> None:
    spec = read_spec(ROOT / "tracks/lab/specs/remix.toml")
    found = [name for words in spec.mixes.values() for one in parse_mixture(words, TASKS) for name in one.sources]
    assert {"KMMLU", "KMMLU~styles", "KMMLU~options:10"} <= set(found)


def test_the_study_of_two_bases_mixes_korean_and_english_by_tokens() -> None:
    spec = read_spec(ROOT / "tracks/lab/specs/two_bases.toml")
    assert len(spec.bases) == 2
    shares = {}
    for mix in ("korean", "one_to_one", "one_to_four"):
        members = {name: one.share for one in parse_mixture(spec.mixes[mix], TASKS) for name in one.sources}
        shares[mix] = members["KoAlpaca-v1"], members.get("Alpaca-Part", 0)
    korean, one_to_one, one_to_four = (one[0] / sum(one) for one in shares.values())
    assert korean == 1
    assert one_to_one == pytest.approx(1 / 2, abs=0.01)
    assert one_to_four == pytest.approx(1 / 5, abs=0.01)
