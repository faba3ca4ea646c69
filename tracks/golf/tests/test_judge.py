"""The command that judges an entry from elsewhere: its record, a refusal that stays on it, and the budget."""

from pathlib import Path

import pytest
from base_runs import Base
from contain import NEEDS_SANDBOX
from foreign_entries import CHEATS, HONEST, place, written

from nanochat.errors import UserError
from nanochat.paths import read_json
from tracks.golf.judge import Config, main

pytestmark = NEEDS_SANDBOX
__all__ = ["place"]


def test_the_command(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Base(tmp_path / "base")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    main(Config(folder=str(written(place, HONEST)), data=str(base.text), eval_bytes=1500))
    outcome = read_json(base.folder / "golf_judge/entry/outcome.json")
    assert outcome["metrics"]["Bytes"] == len(HONEST) + len("scorer.py")
    assert [row[0] for row in outcome["tables"][1]["rows"]] == ["normalised", "causal", "score first", "bytes", "time"]
    written(place, HONEST.replace(*CHEATS["no number"][:2]))
    with pytest.raises(UserError, match=r"^refused, normalised: "):
        main(Config(folder=str(place), data=str(base.text), eval_bytes=1500))
    refused = read_json(base.folder / "golf_judge/entry/outcome.json")["metrics"]
    assert refused["Refused"].startswith("refused, normalised: ")
    assert "bpb" not in refused
    (place / "weights").write_bytes(bytes(199_993))
    with pytest.raises(UserError, match=r"over the budget of 200,000; the largest: weights 200,000"):
        main(Config(folder=str(place), data=str(base.text)))
    with pytest.raises(UserError, match="name the entry's folder"):
        Config()
    with pytest.raises(UserError, match="--scale=1gpu scores on a GPU, which the sandbox has not"):
        main(Config(folder=str(place), scale="1gpu"))
