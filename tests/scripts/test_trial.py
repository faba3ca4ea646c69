"""The command line of trials; tests/trial has the trials."""

from pathlib import Path

import pytest

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.trial.decision import confirming_pairs
from scripts.trial import Config, main


def test_defaults_are_a_night_on_a_laptop() -> None:
    config = parse(Config, [])
    assert (config.scale, config.budget, config.pairs, config.confirm) == ("embedded", "flops", 2, True)
    assert confirming_pairs(config.pairs) == 6


@pytest.mark.parametrize("flag", ["--verify", "--holdout"])
def test_a_series_that_is_not_there_is_one_sentence(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="there is no series default below"):
        main(parse(Config, [flag]))
