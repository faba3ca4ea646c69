"""The command: files of a card, from any machine, and the record for programs."""

import json
import re
import shutil

from conftest import ROOT
from copies import BEING_COMPILED
from outcomes import leave

from nanochat.paths import read_json
from nanochat.report.__main__ import read_record
from nanochat.report.card import markdown, read_card

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
CARD = rf"""# nanochat training report

Generated: {TIME}

Code: commit f1e8954 \(dirty\)

Command: python -m scripts\.tok_train

## Environment

### Git Information
- Branch: main
- Commit: f1e8954 \(dirty\)

### Hardware
- Platform: Linux
- GPUs: 8x NVIDIA H100 80GB HBM3
- Hourly Rate: \$24\.00/hour

### Software
- Python: 3\.10\.12

### Bloat
- Characters: 474,203

Run started: 2025-10-23 22:27:01

---

## Tokenizer training
timestamp: 2025-10-24 01:20:23

- max_chars: 10,000,000,000
- doc_cap: 10,000
- vocab_size: 65,536
- train_time: 167\.3429
- num_special_tokens: 9

## Summary

- Characters: 474,203

Total wall clock time: 2h53m
Total cost: \$69\.35

\| Stage              \| Time  \| Share  \| Dollars \|
\| ------------------ \| ----- \| ------ \| ------- \|
\| Tokenizer training \| 2h53m \| 100\.0% \| 69\.35   \|
"""


def test_the_card_line_by_line(tmp_path) -> None:
    leave(tmp_path)
    card = markdown(read_card(tmp_path), "report")
    assert re.fullmatch(CARD, card), card
    assert "/home/somebody" not in card


def test_the_command(tmp_path, base, here, monkeypatch) -> None:
    curve = {"title": "Loss", "x": "tokens", "y": "nats", "series": {"train": [[0, 1], [3.0, 2.0]]}}
    leave(base, curves=[curve])
    out = tmp_path / "my cards" / "the card.md"
    done = here("nanochat.report", "--out", str(out))
    assert done.stdout.startswith("Total wall clock time: ")
    assert done.stdout.endswith(f"\nreport card: {out}\n")
    text = out.read_text(encoding="utf-8")
    assert re.findall(r"^!\[Loss\]\((.*)\)$", text, re.MULTILINE) == ["the%20card/tok_train-default-1.svg"]
    assert (out.parent / "the card/tok_train-default-1.svg").read_text(encoding="utf-8").startswith("<svg ")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(base, elsewhere)
    refused = here("nanochat.report", f"--out={out}", code=2)
    assert refused.stderr.startswith("error: no stage has left an outcome below ")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(elsewhere))
    here("nanochat.report", f"--out={out}")
    refused = here("nanochat.report", f"--out={tmp_path}/card.html", code=2)
    assert refused.stderr == f"error: --out={tmp_path}/card.html is not a Markdown file, name it like card.md\n"
    refused = here("nanochat.report", "--compare", "a", code=2)
    assert refused.stderr == "error: --compare needs two runs, A B, not 1\n"


def test_every_form_is_of_the_machine_of_the_run(tmp_path, base, python) -> None:
    """A copy of the program, outside a checkout and in another environment, writes the same except for the date."""
    leave(base, curves=[{"title": "Loss", "x": "a", "y": "b", "series": {"train": [[0, 1], [3.0, float("nan")]]}}])
    leave(base, "base_eval", metrics={"CORE metric": {"value": 0.5, "stderr": 0.1}})
    shutil.copytree(ROOT / "nanochat", tmp_path / "two/nanochat", ignore=BEING_COMPILED)
    cards = []
    for home, variables in [(ROOT, {}), (tmp_path / "two", {"TZ": "Asia/Seoul", "LC_ALL": "C", "PATH": "/bin"})]:
        out = tmp_path / f"out-{len(cards)}"
        python("-m", "nanochat.report", f"--out={out}/card.md", cwd=home, **variables)
        texts = {path.relative_to(out): path.read_text(encoding="utf-8") for path in out.rglob("*") if path.is_file()}
        assert not any(str(tmp_path) in text for text in texts.values())
        dated = rf'(Generated: |"generated": "){TIME}'
        cards.append({path: re.sub(dated, "", text) for path, text in texts.items()})
    assert cards[0] == cards[1]
    assert {path.suffix for path in cards[0]} == {".md", ".html", ".json", ".svg"}


def test_the_record_has_everything(tmp_path, base, here) -> None:
    leave(base, artifacts={"tokenizer.json": "e" * 64})
    leave(base, "zebra", metrics={"stripes": {"value": 0.5, "stderr": float("nan")}})
    here("nanochat.report", f"--out={tmp_path / 'card.md'}")
    text = (tmp_path / "card.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    found = json.loads(text)
    documented = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    assert list(found) == re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE)
    original = read_json(base / "tok_train/default/outcome.json")
    assert found["stages"][0] == original | {"curves": [], "off": []}
    assert found["stages"][1]["metrics"] == {"stripes": {"value": 0.5, "stderr": None}}
    assert found["summary"]["seconds"] == 2 * original["seconds"]
    assert read_record(tmp_path / "card.json") == found
