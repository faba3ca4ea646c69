"""`python -m nanochat.world`: a finished world stays, anything else is refused; test_writer.py has its processes."""

import re

import pytest

from nanochat.world.__main__ import Config, main


def test_a_finished_world_is_left_alone_and_anything_else_refused(tiny_world, tmp_path):
    other = tmp_path / "other"
    (other / "folder").mkdir(parents=True)
    before = {path: path.stat().st_mtime_ns for path in tiny_world.rglob("*")}
    main(Config(out=str(tiny_world), size="tiny"))
    main(Config(out=str(tiny_world)))
    for out, seed in ((tiny_world, 2), (other, 1)):
        message = f"is not the world of seed {seed} and size tiny, remove it or name another folder"
        with pytest.raises(ValueError, match=re.escape(message)):
            main(Config(out=str(out), seed=seed, size="tiny"))
    assert {path: path.stat().st_mtime_ns for path in tiny_world.rglob("*")} == before
