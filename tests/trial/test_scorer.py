"""What a scorer's process sees: the files of its folder, counted, and the packages that it may import."""

from pathlib import Path

import pytest
from foreign_entries import HONEST, written

from nanochat.errors import UserError
from nanochat.trial.scorer import entry_files, library_paths


def test_files_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no scorer.py"):
        entry_files(tmp_path)
    written(tmp_path, HONEST)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "one").write_bytes(b"123")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "scorer.pyc").write_bytes(b"not copied")
    assert entry_files(tmp_path) == {"scorer.py": len(HONEST) + 9, "weights/one": 3 + 11}  # names count
    (tmp_path / "more").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="an entry has no links"):
        entry_files(tmp_path)


def test_what_the_scorer_may_import() -> None:
    names = {Path(path).name for path in library_paths()}
    assert {"numpy", "torch", "typing_extensions.py"} <= names
    assert not names & {"nanochat", "tasks", "transformers", "tokenizers", "pytest"}
