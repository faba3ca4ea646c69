"""A whole practice on a tiny model: its stages run, each is scored, the card has what was gained, and it resumes."""

import shlex
from pathlib import Path

import bundles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import write_hub
from forks import Forked, run_module

from bench.evidence import CARDS
from nanochat.config import parse
from nanochat.paths import read_json, read_jsonl, saved_steps
from tracks.bases.practice import Config
from tracks.bases.tests.public_models import save_folder

TASK = "Alpaca-Part-Constrained"  # a random model follows some constraints by chance, so there are pairs
FEW = (
    "--sft-steps=2",
    "--rl-steps=1",
    "--sampling-steps=12",
    "--dpo-epochs=1",
    "--problems=4",
    f"--task={TASK}",
    "--mixture=GSM8K%50,ARC-Easy%50",
)


def test_the_tag_of_the_card_is_that_of_the_series() -> None:
    [card] = [card for card in CARDS if card.name == "bases"]
    assert card.tag == parse(Config, shlex.split(card.commands[-1])[3:]).tag


def test_the_task_of_rl_is_asked_however_it_is_written() -> None:
    assert parse(Config, ["--task=alpaca-part-constrained"]).tasks[-1] == TASK
    assert "MMLU" in parse(Config, ["--task=mmlu~options:8"]).tasks


@pytest.mark.timeout(900)
def test_practice(tmp_path: Path) -> None:
    hub, home = tmp_path / "hub", tmp_path / "home"
    write_hub(hub)
    bundles.write_bundle(hub, bundles.HARD)
    asked = [f"Describe number {number}." for number in range(90)]
    place = hub / "datasets/tatsu-lab/alpaca/data"
    place.mkdir(parents=True)
    rows = {"instruction": asked, "input": [""] * 90, "output": ["It is one."] * 90}
    pq.write_table(pa.table(rows), place / "train-00000-of-00001.parquet")
    save_folder("qwen3", tmp_path / "qwen3")

    def run(module: str, *flags: str) -> Forked:
        places = {"NANOCHAT_BASE_DIR": str(home), "NANOCHAT_HUB": str(hub)}
        return Forked(tmp_path / "out", run_module, None, module, *flags, **places)

    def practice(*flags: str) -> Forked:
        own = ("--model-tag=tiny", "--unlearned=hard_choices", f"--out={tmp_path}/card.md")
        return run("tracks.bases.practice", *own, *FEW, *flags)

    assert practice().refused().startswith("--model-tag=tiny names no base model: bring one in with ")
    run("tracks.bases.bring", f"--from={tmp_path / 'qwen3'}", "--tag=tiny", "--source=base").done()
    assert practice("--task=Chess").refused().startswith("Chess is not a task")
    assert practice("--mixture=GSM8K%60,Chess%40").refused().startswith("Chess is not a task")
    assert practice("--kinds=dpo,ppo").refused() == "--kinds=dpo,ppo: choose some of sft, rl, dpo, separated by commas"
    # One kind alone; the others follow, and nothing is done twice.
    practice("--kinds=rl").done(timeout=280)
    assert not (home / "chat_sft").exists()
    [table] = read_json(home / "practice/practice/outcome.json")["tables"]
    assert table["title"] == "Before and after RL"
    reinforced = (home / "chat_rl/practice/outcome.json").read_bytes()
    practice().done(timeout=280)
    assert (home / "chat_rl/practice/outcome.json").read_bytes() == reinforced
    for stage, source in (("chat_eval_base", "base"), ("base_eval_sft", "sft"), ("chat_eval_dpo", "dpo")):
        assert read_json(home / stage / "practice" / "outcome.json")["config"]["source"] == source
    [answer, *_] = read_jsonl(home / "chat_eval_base" / "practice" / f"{TASK}.jsonl", dict)
    assert answer["completions"]
    tables = {table["title"]: table["rows"] for table in read_json(home / "practice/practice/outcome.json")["tables"]}
    assert list(tables) == [f"Before and after {stage}" for stage in ("SFT", "RL", "DPO")]
    assert all(
        {row[0] for row in rows} == {"GSM8K", "SpellingBee", "ARC-Easy", TASK, "hard_choices"}
        for rows in tables.values()
    )
    assert "\n## Practice\n" in (tmp_path / "card.md").read_text()
    assert read_json(home / "chat_sft/practice/outcome.json")["config"]["mixture"] == "GSM8K%50,ARC-Easy%50"
    # The same command has nothing left to do; other answers are other pairs, which DPO learns again.
    trained = (home / "chat_dpo/practice/outcome.json").read_bytes()
    practice().done(timeout=280)
    assert (home / "chat_dpo/practice/outcome.json").read_bytes() == trained
    # More answers: of fewer there may be too few pairs, as a random model follows a constraint by chance alone.
    said = practice("--sampling-steps=18").done(timeout=280)
    assert "== dpo: repeated, " in said
    assert saved_steps(home / "chat_rl" / "practice-answers")[-1] == 18
