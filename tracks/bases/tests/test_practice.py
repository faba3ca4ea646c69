"""A practice on a tiny model: its stages run, each is scored, and the card has what was gained."""

from pathlib import Path

import bundles
from fake_hub import write_hub
from forks import Forked, run_module

from nanochat.paths import read_json, read_jsonl, saved_steps
from tracks.bases.tests.public_models import save_folder

FEW = ("--sft-steps=2", "--rl-steps=1", "--sampling-steps=2", "--dpo-epochs=1", "--problems=4")


def test_practice(tmp_path: Path) -> None:
    write_hub(tmp_path / "hub")
    bundles.write_bundle(tmp_path / "hub", bundles.HARD)
    save_folder("qwen3", tmp_path / "qwen3")

    def run(module: str, *flags: str) -> Forked:
        places = {"NANOCHAT_BASE_DIR": str(tmp_path / "home"), "NANOCHAT_HUB": str(tmp_path / "hub")}
        return Forked(tmp_path / "out", run_module, None, module, *flags, **places)

    asked = (
        "tracks.bases.practice",
        "--model-tag=tiny",
        "--task=GSM8K",
        "--unlearned=hard_choices",
        f"--out={tmp_path}/card.md",
        *FEW,
    )
    assert run(*asked).refused().startswith("--model-tag=tiny names no base model: bring one in with ")
    run("tracks.bases.bring", f"--from={tmp_path / 'qwen3'}", "--tag=tiny", "--source=base").done()
    # A random model is never right, so there are no pairs: the series gets as far as DPO.
    series = run(*asked)
    assert series.codes(timeout=280) == [2], series.err()
    assert "no prompt has a better and a worse answer" in series.out()
    home = tmp_path / "home"
    assert saved_steps(home / "chat_rl" / "practice-answers") == [2]
    for stage, source in (("chat_eval_base", "base"), ("base_eval_sft", "sft"), ("chat_eval_rl", "rl")):
        assert read_json(home / stage / "practice" / "outcome.json")["config"]["source"] == source
    [answer, *_] = read_jsonl(home / "chat_eval_base" / "practice" / "SpellingBee.jsonl", dict)
    assert answer["completions"]
    said = run("tracks.bases.gains").done()
    titles, benchmarks = ("Before and after SFT", "Before and after RL"), ("GSM8K", "SpellingBee", "hard_choices")
    assert all(name in said for name in (*titles, *benchmarks))
    run("nanochat.report", "--tag=practice", f"--out={tmp_path}/card.md").done()
    assert "\n## Practice\n" in (tmp_path / "card.md").read_text()
