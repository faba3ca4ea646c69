import hashlib

import pytest

from nanochat.config import option, options
from nanochat.environment import bloat
from nanochat.outcome import Outcome


@options("cake")
class Config:
    depth: int = option(2, "layers")
    data: str = option("/home/somebody/text", "where from", in_card=False)


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
    assert outcome.config == {"depth": 3, "data": "/home/somebody/text"}
    assert outcome.card == ["depth"]
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
