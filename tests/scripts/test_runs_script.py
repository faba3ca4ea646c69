"""scripts.runs on made runs."""

import pytest
from outcomes import leave

from nanochat.paths import hold_folder, write_bytes
from scripts.runs import Config, main


@pytest.fixture
def base(base):
    """A finished run with a checkpoint of a megabyte, one that is not finished, and a folder that is not a run."""
    leave(base, "chat_sft", "done")
    write_bytes(base / "chat_sft/done/step_000003/model.safetensors", bytes(10**6))
    write_bytes(base / "base_train/going/metrics.jsonl", b"")
    write_bytes(base / "base_train/going/step_000003.tmp-part/model.safetensors", b"")  # which is being written
    (base / "world/texts").mkdir(parents=True)
    return base


def test_runs_are_listed_with_their_sizes(base, capsys) -> None:
    main(Config())
    rows = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()[-3:-1]]
    assert [row[1] for row in rows] == ["base_train/going", "chat_sft/done"]
    assert rows[0][2:4] == ["no outcome", "0"]
    assert rows[1][3:5] == ["1", "0.001"]
    # A record of another version hides no other run.
    write_bytes(base / "chat_sft/done/outcome.json", b'{"version": 99}')
    main(Config())
    said = capsys.readouterr().out
    assert "unreadable outcome" in said
    assert "base_train/going" in said


def test_a_run_is_deleted_unless_it_is_at_work(base, capsys) -> None:
    with hold_folder(base / "chat_sft/done"), pytest.raises(ValueError, match="another process runs in"):
        main(Config(delete="chat_sft/done"))
    main(Config(delete="chat_sft/done"))
    assert capsys.readouterr().out.startswith("chat_sft/done is deleted\n")
    assert not (base / "chat_sft/done").exists()


@pytest.mark.parametrize("name", ["chat_sft/gone", "world/texts", "chat_sft", "../outside", "chat_sft/../world/texts"])
def test_anything_else_stays(base, name) -> None:
    with pytest.raises(ValueError, match="is not a run in"):
        main(Config(delete=name))
