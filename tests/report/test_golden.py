"""The card has all sections and fields of the reference's card, `tests/golden/card.json`, the sections in its order.

The stages run for a few steps on a small mirror of the hub, and nvidia-smi tells of eight GPUs. What only a GPU
measures, or a setting only shows once it is used, is filled in.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bundles import world_tasks, write_bundle
from conftest import ROOT, checked
from corpora import write_letters
from outcomes import card_fields

from nanochat.paths import read_json, write_json
from nanochat.report.card import markdown, read_card
from nanochat.statistics import NOT_KNOWN

GOLDEN = read_json(ROOT / "tests/golden/card.json")  # section -> fields; "" is the head of the card
CORE = GOLDEN["Base model evaluation"][3:]  # after timestamp, model and mean
# Fields with another name here: (section, field) -> its name, and why. "*" is any section. None: not here.
RENAMED: dict[tuple[str, str], tuple[str | None, str]] = {
    ("*", "Dependencies (uv.lock lines)"): (
        "Dependencies (requirements.lock lines)",
        "uv.lock names the index it was made from, so it is not committed",
    ),
    ("Base model training", "eval_tokens"): ("eval_bytes", "the same text, whatever the tokenizer"),
    ("Base model training", "warmup_ratio"): ("warmup_steps", "optimizer states need steps, not a share of the run"),
    ("Midtraining", "dry_run"): (None, "a dry run leaves no card"),
    ("Chat SFT", "target_examples_per_step"): ("total_batch_size", "rows are packed, so a step is counted in tokens"),
    ("Chat SFT", "eval_steps"): ("eval_tokens", "the same tokens on any number of GPUs"),
    ("*", "task_name"): ("tasks", "one command scores several tasks"),
    ("*", "batch_size"): ("slots", "finished samples give their place to the next, so a batch has slots"),
    ("*", "step"): ("Step", "that of the checkpoint, also if the newest was meant"),
    **{
        ("Base model loss", f"sample {number}"): ("Samples | Continuation", "a table, with the prompt beside it")
        for number in range(7)
    },
    **{
        ("Tokenizer evaluation", f"Comparison with {label} | row fwe-{split}"): (
            f"Comparison with {label} | row letters-{split}",
            "the row has the name of the text",
        )
        for label in ("GPT-2", "GPT-4")
        for split in ("train", "val")
    },
    ("Summary", "row CORE"): ("row CORE metric", "as in its section"),
}

SMALL = "--max-seq-len=128 --device-batch-size=2 --no-compile --save-every=-1"
TRAIN = f"{SMALL} --num-iterations=2 --eval-every=-1"
SCORE = "--max-problems=2 --max-new-tokens=4"
RUN = f"""
scripts.tok_train --vocab-size=320 --data=letters
scripts.tok_eval --data=letters
scripts.base_train --tag=default --depth=1 --data=letters --num-iterations=2 --eval-every=1 --eval-bytes=2000 {SMALL}
    --total-batch-size=256 --core-metric-every=0 --core-metric-max-per-task=1 --sample-every=-1
scripts.base_loss --tag=default --eval-bytes=2000
scripts.base_eval --tag=default --max-per-task=1
scripts.mid_train --tag=default {TRAIN} --eval-tokens=300 --eval-metrics-every=-1 --mixture=gsm8k
scripts.chat_eval --source=mid --tag=default --tasks=GSM8K {SCORE}
scripts.chat_sft --tag=default {TRAIN} --eval-tokens=300 --eval-metrics-every=-1 --mixture=aqua@20,gsm8k@20
scripts.chat_eval --source=sft --tag=default --tasks=AQUA {SCORE}
scripts.chat_rl --tag=default --task=GSM8K --device-batch-size=2 --num-iterations=1 --examples-per-step=2
    --num-samples=2 --max-new-tokens=4 --eval-every=-1 --temperature=0.7
scripts.chat_eval --source=rl --tag=default --tasks=AQUA {SCORE}
"""
SMI = """#!/bin/sh
for _ in 1 2 3 4 5 6 7 8; do echo "NVIDIA H100 80GB HBM3, 81559"; done
"""


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory, quick: str, fake_hub: Path) -> str:
    """The card of such a run, in Markdown."""
    folder = tmp_path_factory.mktemp("golden")
    write_letters(folder / "letters", 60)
    hub = folder / "hub"
    shutil.copytree(fake_hub, hub)
    examples = world_tasks(20)
    write_bundle(hub, [examples[number % len(examples)]._replace(label=name) for number, name in enumerate(CORE)])
    smi = folder / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    environment = os.environ | {
        "NANOCHAT_BASE_DIR": str(folder / "base"),
        "NANOCHAT_HUB": str(hub),
        "TIKTOKEN_CACHE_DIR": str(folder / "no cache"),
        "https_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "PATH": f"{smi.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    for command in RUN.replace("\n    ", " ").strip().splitlines():
        words = [quick, "-m", *command.split()]
        checked(subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True), 0)
    for path in (folder / "base").glob("*/default/outcome.json"):
        record = read_json(path)
        metrics = {name: 0.5 if value == NOT_KNOWN else value for name, value in record["metrics"].items()}
        write_json(path, record | {"metrics": metrics, "off": []})
    return markdown(read_card(folder / "base"), "report")


def test_every_section_and_field_of_the_reference_is_there(card) -> None:
    found = card_fields(card)
    assert [section for section in found if section in GOLDEN] == list(GOLDEN)
    missing = []
    for section, names in GOLDEN.items():
        for name in names:
            ours, _ = RENAMED.get((section, name)) or RENAMED.get(("*", name)) or (name, "")
            if ours is not None and ours not in found[section]:
                missing.append((section, ours))
    assert missing == []


def test_a_field_with_another_name_is_one_of_the_reference_and_has_a_reason() -> None:
    for (section, name), (_, reason) in RENAMED.items():
        sections = GOLDEN if section == "*" else [section]
        assert any(name in GOLDEN[one] for one in sections), name
        assert reason


def test_the_figures_of_eight_gpus(card) -> None:
    assert "- GPUs: 8x NVIDIA H100 80GB HBM3\n- GPU Memory: 637.2 GB total\n- CUDA Version: " in card
    assert "- Hourly Rate: $24.00/hour\n" in card
    assert re.search(r"^- CPUs: \d+ cores \(\d+ logical\)$", card, re.MULTILINE)
    assert re.search(r"^- Share of tests: \d+\.\d%$", card, re.MULTILINE)
    assert "- core_metric_max_per_task: 1\n" in card
    assert re.search(r"^- Epochs: 0\.\d\d$", card, re.MULTILINE)
    assert re.search(r"^- Answers cut at the limit: [\d.]+%$", card, re.MULTILINE)
