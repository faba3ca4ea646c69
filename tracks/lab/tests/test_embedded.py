"""The spec of the embedded lab is one that the lab accepts, with and without broken runs."""

from pathlib import Path

import pytest

from nanochat.paths import write_text
from tracks.lab.embedded import mixes_of, spec_text
from tracks.lab.sweep import mistakes, read_spec


@pytest.mark.parametrize("broken", [False, True])
def test_the_spec_is_accepted(tmp_path, broken) -> None:
    mixes = mixes_of(Path("/chats"))
    if broken:
        mixes = {name: mixes[name] for name in ("choices", "facts")}
    path = tmp_path / "lab.toml"
    write_text(path, spec_text(["default", "default-october"], [1, 2, 3], mixes, broken))
    spec = read_spec(path)
    assert [sentence for sentence in mistakes(spec) if "has no checkpoint" not in sentence] == []
    assert len(spec.runs) == 2 * len(mixes) * 3
    assert len(spec.merged_runs) == (0 if broken else 2 * 4 * 3)
    assert spec.rates == ([100.0] if broken else [1.0])
