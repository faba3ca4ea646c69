"""A trained entry becomes a file: its bytes, and the clock."""

import time
from dataclasses import replace
from typing import Any

import pytest
from base_runs import Base, change_manifest

from nanochat.paths import read_json
from tracks.golf import pack as golf_pack
from tracks.golf.artifact import read_artifact
from tracks.golf.entries import SCALES

PLAN = "embed=int8-row+clip-20,blocks=int6-row+clip-12"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    base = Base(tmp_path_factory.mktemp("golf"))
    base.run("entry", "--model=golf")
    return base


@pytest.fixture(autouse=True)
def here(base, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))


def packed(base) -> dict[str, Any]:
    return read_json(base.folder / "golf_pack/entry/outcome.json")


def test_the_finest_codes_that_fit_fill_the_bytes_and_come_again(base) -> None:
    config = golf_pack.Config(tag="entry", plan=PLAN, model_bytes=60_000, eval_bytes=3000)
    golf_pack.main(config)
    path = base.folder / "golf_pack/entry/artifact.golf"
    data, metrics = path.read_bytes(), packed(base)["metrics"]
    assert 55_000 < metrics["Model bytes"] <= 60_000
    assert metrics["Model bytes"] + read_artifact(data).bytes["tokenizer"] == len(data)
    golf_pack.main(config)
    assert path.read_bytes() == data
    golf_pack.main(replace(config, model_bytes=0))
    [tensors] = packed(base)["tables"]
    assert {row[1] for row in tensors["rows"]} == {"int8-row+clip-20", "int6-row+clip-12"}  # as given
    for *_, bits, by_entropy, taken in tensors["rows"]:
        assert 0 < bits < 8
        assert taken > 0.98 * by_entropy


def test_steps_that_training_did_not_round_to_are_named(base, monkeypatch, capsys) -> None:
    """As when the code grows, and leaves fewer bytes to the model."""
    golf_pack.main(golf_pack.Config(tag="entry", plan=PLAN, model_bytes=0, eval_bytes=3000))
    assert "times the steps" not in capsys.readouterr().out  # no --qat
    artifact = read_artifact((base.folder / "golf_pack/entry/artifact.golf").read_bytes())
    assert golf_pack.step_ratio(artifact, PLAN) == 1
    assert golf_pack.step_ratio(artifact, "embed=int8-row+clip-18,blocks=int6-row+clip-6") == 2
    assert golf_pack.step_ratio(artifact, "embed=int8-row+clip-40,blocks=int6-row") == 0.5
    *_, path = sorted((base.folder / "base_train/entry").glob("step_*/manifest.json"))
    change_manifest(
        path, lambda manifest: manifest["config"].update(qat="embed=int8-row+clip-10,blocks=int6-row+clip-6")
    )
    golf_pack.main(golf_pack.Config(tag="entry", plan=PLAN, model_bytes=0, eval_bytes=3000))
    said = capsys.readouterr().out
    assert "2.00 times the steps that the model was trained with: try --qat='embed=int8-row+clip-20,blocks=" in said


def test_the_clock_runs_through_calibration_and_packing(base, monkeypatch) -> None:
    clock, real, read = [0.0], time.monotonic, golf_pack.calibration_batches

    def planted(*arguments: Any) -> Any:
        clock[0] += 20.0
        return read(*arguments)

    monkeypatch.setattr("time.monotonic", lambda: real() + clock[0])
    monkeypatch.setattr(golf_pack, "calibration_batches", planted)
    monkeypatch.setattr(golf_pack, "CALIBRATION", 512)
    config, seconds = golf_pack.Config(tag="entry", plan="embed=int8-row,blocks=int6-row", eval_bytes=3000), []
    with_gptq = replace(config, plan=f"{config.plan}+gptq")
    for one in (config, with_gptq):
        golf_pack.main(one)
        seconds.append(packed(base)["metrics"]["Packing seconds"]["value"])
    assert seconds[1] - seconds[0] > 10
    files = (base.folder / "golf_pack/entry").iterdir
    earlier = {path: path.read_bytes() for path in files()}
    monkeypatch.setitem(SCALES, "embedded", replace(SCALES["embedded"], seconds=3))
    with pytest.raises(ValueError, match="over the limit of 3 s"):
        golf_pack.main(with_gptq)
    assert {path: path.read_bytes() for path in files()} == earlier
