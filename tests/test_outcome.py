import hashlib

import pytest

from nanochat.config import option, options
from nanochat.environment import bloat
from nanochat.outcome import Outcome


@options("cake")
class Config:
    depth: int = option(2, "layers")
    data: str = option("/home/somebody/text", "where from", in_card=False)
    clip: float = option(0.0, "a limit (0: none)", off=0)
    rate: float = option(0.0, "of which 0 is a value like any other")
    steps: int = option(-1, "chosen for you", least=-1)
    sugar: bool = option(False, "sweet")
    salt: bool = option(True, "salty")
    name: str = option("", "of the cake")


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    outcome = Outcome.begin("bake", "d2", Config(depth=3))
    artifact = tmp_path / "cake.bin"
    artifact.write_bytes(b"cake")
    outcome.metrics["loss"] = {"value": 2.5, "stderr": 0.1}
    outcome.tables.append({"title": "Layers", "columns": [["Name", ""]], "rows": [["first"]]})
    outcome.add_artifact(artifact)
    outcome.write()
    return outcome, tmp_path / "bake/d2/outcome.json"


def test_a_record_comes_back_as_it_was_written(written, tmp_path) -> None:
    outcome, path = written
    assert path == tmp_path / "bake/d2/outcome.json"
    assert Outcome.load(path) == outcome
    assert outcome.config["depth"] == 3
    assert outcome.config["data"] == "/home/somebody/text"
    assert outcome.card == ["depth", "clip", "rate", "steps", "sugar", "salt", "name"]
    assert outcome.off == ["clip", "steps", "sugar", "name"]
    assert outcome.artifacts == {"cake.bin": hashlib.sha256(b"cake").hexdigest()}
    assert outcome.command.startswith("python ")
    assert outcome.versions["pyarrow"]
    assert outcome.environment["Bloat"] == bloat()
    assert 0 <= outcome.seconds < 60
    assert outcome.started <= outcome.timestamp
    for text in ('{"stage": "bake"}', '{"sta', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"outcome\.json is not a record of this version: move it away"):
            Outcome.load(path)


def test_an_option_that_was_given_is_not_off(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    given = Config(clip=1.0, steps=7, sugar=True, name="auto", salt=False)
    assert Outcome.begin("bake", "d2", given).off == []
