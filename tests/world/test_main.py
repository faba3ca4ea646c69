"""`python -m nanochat.world`: a finished world stays, anything else is refused; test_writer.py has its processes."""

import pytest

from nanochat.world.__main__ import Config, main


def test_a_finished_world_is_left_alone_and_anything_else_refused(tiny_world, tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    before = {path: path.stat().st_mtime_ns for path in tiny_world.rglob("*")}
    for size in ("tiny", ""):
        main(Config(out=str(tiny_world), size=size))
    for folder, seed in ((tiny_world, 2), (tmp_path, 1)):
        message = f"is not the world of seed {seed} and size tiny, remove it or name another folder"
        with pytest.raises(ValueError, match=message):
            main(Config(out=str(folder), seed=seed, size="tiny"))
    assert {path: path.stat().st_mtime_ns for path in tiny_world.rglob("*")} == before
