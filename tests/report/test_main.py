import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from outcomes import ENVIRONMENT, leave

from nanochat.report.__main__ import read_record, write_card
from nanochat.report.card import markdown, read_card
from nanochat.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]

# The header and summary of the reference's card, line by line.
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
HEADER = rf"""# nanochat training report

Generated: {TIME}

## Environment

### Git Information
- Branch: main
- Commit: f1e8954 \(dirty\)
- Message: Document the setup

### Hardware
- Platform: Linux
- CPUs: 104 cores \(104 logical\)
- Memory: 1007\.4 GB
- GPUs: 8x NVIDIA H100 80GB HBM3
- GPU Memory: 633\.7 GB total
- CUDA Version: 12\.8
- Hourly Rate: \$24\.00/hour

### Software
- Python: 3\.10\.12
- PyTorch: 2\.8\.0\+cu128


### Bloat
- Characters: 474,203
- Files: 57

Run started: 2025-10-23 22:27:01

---

"""
SECTION = """## Tokenizer training
timestamp: 2025-10-24 01:20:23

- max_chars: 10,000,000,000
- doc_cap: 10,000
- vocab_size: 65,536
- train_time: 167.3429
- num_special_tokens: 9
"""
SUMMARY = """## Summary

- Characters: 474,203
- Files: 57

Total wall clock time: 2h53m
Total cost: $69.35

| Stage | Time | Share | Cost |
|-------|------|-------|------|
| Tokenizer training | 2h53m | 100.0% | $69.35 |
"""
SUMMARY += "".join(f"| {stage.section} | - | - | - |\n" for stage in STAGES[1:] if stage.source != "base")
SUMMARY += "\n![Wall clock time](report/time.svg)\n"


def test_the_card_line_by_line(tmp_path):
    leave(tmp_path)
    card = markdown(read_card(tmp_path), "report")
    assert re.match(HEADER, card), card
    rest = card[re.match(HEADER, card).end() :]
    assert rest == f"{SECTION}\n\n{SUMMARY}", rest
    assert "/home/somebody" not in card


def test_no_price_no_cost(tmp_path):
    leave(tmp_path, environment=ENVIRONMENT | {"Hardware": ENVIRONMENT["Hardware"] | {"GPUs": "1x NVIDIA Q9"}})
    card = markdown(read_card(tmp_path), "report")
    assert "$" not in card
    assert "| Tokenizer training | 2h53m | 100.0% |\n" in card


def test_the_command(tmp_path, base, here):
    leave(base)
    out = tmp_path / "cards" / "card.md"
    done = here("nanochat.report", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Total wall clock time: ")
    assert done.stdout.endswith(f"\nreport card: {out}\n")
    assert SECTION in out.read_text(encoding="utf-8")
    [picture] = re.findall(r"^!\[.*\]\((card/.*)\)$", out.read_text(encoding="utf-8"), re.MULTILINE)
    assert (out.parent / picture).read_text(encoding="utf-8").startswith("<svg ")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(base, elsewhere)
    done = here("nanochat.report", f"--out={out}")
    assert done.returncode == 2
    assert (
        done.stderr == f"error: no stage has left an outcome below {base}, run one first or name another --base-dir\n"
    )
    assert here("nanochat.report", f"--out={out}", f"--base_dir={elsewhere}").returncode == 0


def test_links_are_whole_and_an_older_cards_pictures_go(tmp_path):
    leave(tmp_path / "base")
    out, folder = tmp_path / "my cards/the card.md", tmp_path / "my cards/the card"
    folder.mkdir(parents=True)
    kept = ["base_train-d4-1.txt", "base_train.svg", "mine-1.svg"]
    for name in (*kept, "base_train-d4-1.svg", "chat_eval_sft-d4-tasks.svg"):
        (folder / name).touch()
    write_card(tmp_path / "base", out)
    assert re.findall(r"!\[.*\]\((.*)\)", out.read_text(encoding="utf-8")) == ["the%20card/time.svg"]
    assert sorted(path.name for path in folder.iterdir()) == [*kept, "time.svg"]


def test_every_form_is_of_the_machine_of_the_run(tmp_path, base):
    """Two copies of the program, outside a checkout and in unlike environments, write the same except for the date."""
    curve = {"title": "Loss", "x": "tokens", "y": "nats", "series": {"train": [[0, 1, 2], [3.0, 2.0, float("nan")]]}}
    leave(base, curves=[curve])
    scores = {"CORE metric": {"value": 0.5, "stderr": 0.1}, "piqa": {"value": 0.5, "stderr": float("nan")}}
    leave(base, "base_eval", metrics=scores, started="2025-10-23T21:00:00.000+00:00")
    shutil.move(base, tmp_path / "moved")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA T4, 16000'\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    cards = []
    for name, variables in [
        ("one", {}),
        (
            "two",
            {"TZ": "Asia/Seoul", "LC_ALL": "C", "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NANOCHAT_BASE_DIR": "/x"},
        ),
    ]:
        shutil.copytree(ROOT / "nanochat", tmp_path / name / "nanochat", ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / name / f"more-{name}.py").write_text("print()\n" * (1 + (name == "two")))
        command = [sys.executable, "-m", "nanochat.report", f"--base-dir={tmp_path / 'moved'}", "--out=out/card.md"]
        done = subprocess.run(command, cwd=tmp_path / name, env=os.environ | variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        files = sorted(path for path in (tmp_path / name / "out").rglob("*") if path.is_file())
        texts = {path.relative_to(tmp_path / name): path.read_text(encoding="utf-8") for path in files}
        assert not any(str(tmp_path) in text for text in texts.values())
        dated = rf'(Generated: |"generated": "){TIME}'
        cards.append({path: re.sub(dated, "", text) for path, text in texts.items()})
    assert cards[0] == cards[1]
    assert {path.suffix for path in cards[0]} == {".md", ".html", ".json", ".svg"}


def test_the_record_has_everything(tmp_path, base, here):
    leave(base, artifacts={"tokenizer.json": "e" * 64})
    leave(base, "zebra", metrics={"stripes": {"value": 0.5, "stderr": float("nan")}})
    leave(base, "ant").write_text("{")
    assert here("nanochat.report", f"--out={tmp_path / 'card.md'}").returncode == 0
    refuse = lambda word: pytest.fail(f"{word} is no JSON")  # noqa: E731
    found = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"), parse_constant=refuse)
    documented = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE)
    assert list(found) == keys
    assert [stage["stage"] for stage in found["stages"]] == ["tok_train", "zebra"]
    original = json.loads((base / "tok_train/default/outcome.json").read_text())
    assert found["stages"][0] == original | {"curves": []}
    assert found["stages"][1]["metrics"] == {"stripes": {"value": 0.5, "stderr": None}}
    assert found["damaged"].keys() == {"ant/default/outcome.json"}
    assert found["summary"]["seconds"] == 2 * original["seconds"]
    shares = {share["title"]: share["part"] for share in found["summary"]["shares"]}
    assert (shares["Tokenizer training"], shares["Chat RL"]) == (0.5, None)
    assert read_record(tmp_path / "card.json") == found
    for text in ("", "[]", '{"format": 0}'):
        (tmp_path / "card.json").write_text(text)
        with pytest.raises(ValueError, match=r"is no report\.json of format 1"):
            read_record(tmp_path / "card.json")


def test_the_names_of_its_files(tmp_path, base, here):
    leave(base)
    (tmp_path / "card.md").mkdir()
    for out, why in [
        ("card.html", "is no Markdown file, name it like card.md"),
        ("card.md", "is a folder, name a file"),
    ]:
        done = here("nanochat.report", f"--out={tmp_path}/{out}")
        assert (done.returncode, done.stderr) == (2, f"error: --out={tmp_path}/{out} {why}\n")
    done = here("nanochat.report", "--compare", "a")
    assert (done.returncode, done.stderr) == (2, "error: --compare takes two runs or more, A B, not 1\n")
