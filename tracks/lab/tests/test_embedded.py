"""The spec of the embedded lab is one that the lab accepts, with and without broken runs."""

import shlex
from pathlib import Path

import pytest
from outcomes import leave

from bench.evidence import CARDS
from nanochat.config import parse
from nanochat.paths import write_text
from scripts import base_train
from tracks.lab import leaderboard
from tracks.lab.embedded import Config, mixes_of, spec_text, steps
from tracks.lab.leaderboard import is_asked_for
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
    assert spec.confirm_seeds == ([] if broken else [11, 12, 13])


def test_further_trainings_are_replicas(tmp_path) -> None:
    mixes = mixes_of(Path("/chats"))
    replicas = {"default": ["default-2", "default-3"], "default-october": ["default-october-2", "default-october-3"]}
    path = tmp_path / "lab.toml"
    write_text(path, spec_text([*replicas], [1], mixes, replicas=replicas))
    spec = read_spec(path)
    assert [sentence for sentence in mistakes(spec) if "has no checkpoint" not in sentence] == []
    assert (spec.replicas, spec.samples, len(spec.runs)) == (replicas, 3, 2 * 3 * len(mixes))


def test_the_tags_of_the_card_are_those_of_the_lab_its_broken_runs_and_the_leaderboard(base) -> None:
    [card] = [card for card in CARDS if card.name == "lab"]
    lab, board = (shlex.split(command)[3:] for command in card.commands)
    config = parse(Config, lab)
    *_, last = steps(config, "default", "")
    found = parse(leaderboard.Config, board)
    assert last.command[1] == f"--tag={card.tag.removesuffix(f',{found.tag}')}"
    spec = read_spec(base / f"lab/{config.tag}.toml")
    assert found.suite.split(",") == [*spec.dev, *spec.stable]
    assert is_asked_for(f"chat_eval_sft/{spec.tag_of(spec.runs[0])}", found.runs.split(","))


def names(config: Config) -> list[str]:
    return [step.name for step in steps(config, "default", "")]


def test_each_training_has_a_seed_of_its_own(base, monkeypatch) -> None:
    found = list(steps(Config(trainings=3, tag="three"), "default", ""))
    trained = {step.output: step for step in found if step.command[0] == "scripts.base_train"}
    assert list(trained) == [
        f"base_train/{tag}"
        for tag in ("default-october", "default-2", "default-3", "default-october-2", "default-october-3")
    ]
    configs = {output: parse(base_train.Config, step.command[1:]) for output, step in trained.items()}
    assert [config.seed for config in configs.values()] == [1, 1001, 2001, 1001, 2001]
    assert {config.tokenizer_tag for config in configs.values()} == {"default"}
    # That of the embedded run but for tag and seed.
    assert (configs["base_train/default-2"].depth, configs["base_train/default-2"].model) == (8, "induction")
    assert [step.name for step in found][-5:] == ["buckets", "lab", "report", "broken", "card"]
    assert "--tag=three,three-broken" in found[-1].command
    assert found[-1].command[-1] == found[-3].command[-1]  # the same file
    assert read_spec(base / "lab/three.toml").fewest_trainings == 3
    assert names(Config()) == ["october", "buckets", "lab", "report", "broken", "card"]
    assert read_spec(base / "lab/lab.toml").seeds == [1, 2, 3]


def test_a_plan_trains_no_base_again_and_says_the_time(base, monkeypatch, capsys) -> None:
    monkeypatch.setattr("tracks.lab.embedded.check_flags", lambda *_: '{"estimate": {"seconds": 900}}')
    config = Config(trainings=2, flags="--plan")
    assert names(config) == ["october", "buckets", "lab"]
    text = capsys.readouterr().out
    assert text.startswith("2 further trainings of the bases: about 30m00s, one after the other; the plan below is for")
    assert "so 2 times that follows" in text
    assert read_spec(base / "lab/lab.toml").replicas == {}
    for tag in ("default-2", "default-october-2"):
        leave(base, "base_train", tag)
    assert names(config) == ["october", "base-default-2", "base-default-october-2", "buckets", "lab"]
    assert read_spec(base / "lab/lab.toml").fewest_trainings == 2
    assert capsys.readouterr().out == ""
