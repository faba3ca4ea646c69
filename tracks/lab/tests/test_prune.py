"""Pruning: the checkpoints of a run go, all else stays. The lab's own use of it is tested in test_run.py."""

from pathlib import Path

import pytest
from outcomes import leave

from nanochat.errors import UserError
from tracks.lab.prune import Config, main


def test_checkpoints_go(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(base, "chat_sft", "one").parent
    for step in (3, 6):
        (folder / f"step_{step:06d}").mkdir()
        (folder / f"step_{step:06d}" / "model.safetensors").write_bytes(b"weights")
    main(Config(run="chat_sft/one"))
    assert capsys.readouterr().out == f"lab: the checkpoints in {folder} are deleted\n"
    assert {path.name for path in folder.iterdir()} == {"outcome.json", "lock"}
    main(Config(run="chat_sft/one"))  # nothing is left to do
    for wrong in ("", "chat_sft/two", "chat_sft"):
        with pytest.raises(UserError, match=f"--run={wrong} is no finished run"):
            main(Config(run=wrong))
