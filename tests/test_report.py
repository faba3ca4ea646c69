import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nanochat.report import render, show, terminal_table
from nanochat.stages import STAGES, Stage

# The header and summary of the reference's card, line by line; figures are patterns.
COUNT = r"\d{1,3}(,\d{3})*"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
BLOAT = rf"""- Characters: {COUNT}
- Lines: {COUNT}
- Files: {COUNT}
- Tokens \(approx\): {COUNT}
(- Dependencies \(requirements\.lock lines\): {COUNT}
)?"""
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

### Software
- Python: 3\.10\.12
- PyTorch: 2\.8\.0\+cu128


### Bloat
{BLOAT}
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
ENVIRONMENT = {
    "Git Information": {"Branch": "main", "Commit": "f1e8954 (dirty)", "Message": "Document the setup"},
    "Hardware": {
        "Platform": "Linux",
        "CPUs": "104 cores (104 logical)",
        "Memory": "1007.4 GB",
        "GPUs": "8x NVIDIA H100 80GB HBM3",
        "GPU Memory": "633.7 GB total",
        "CUDA Version": "12.8",
    },
    "Software": {"Python": "3.10.12", "PyTorch": "2.8.0+cu128"},
}


def leave(base: Path, stage: str = "tok_train", tag: str = "default", **changes) -> Path:
    """An outcome as a stage leaves it; by default that of the reference's tokenizer."""
    record = {
        "stage": stage,
        "tag": tag,
        "started": "2025-10-23T22:27:01.000+00:00",
        "timestamp": "2025-10-24T01:20:23.000+00:00",
        "command": "python -m scripts.tok_train",
        "config": {"max_chars": 10_000_000_000, "doc_cap": 10_000, "vocab_size": 65_536, "data": "/home/somebody"},
        "card": ["max_chars", "doc_cap", "vocab_size"],
        "metrics": {"train_time": 167.3429, "num_special_tokens": 9},
        "tables": [],
        "seconds": 10_402.0,
        "artifacts": {},
        "versions": {},
        "environment": ENVIRONMENT,
    }
    path = base / stage / tag / "outcome.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record | changes))
    return path


def headings(card: str) -> list[str]:
    return re.findall(r"^## (.*)", card, re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2048, "2048"),
        (9999, "9999"),
        (10_000, "10,000"),
        (-41_839, "-41,839"),
        (0.2, "0.2000"),
        (-1.0, "-1.0000"),
        (None, "None"),
        ("", ""),
        (True, "True"),
        ("two\nlines", "two lines"),
        ({"value": 0.0155}, "0.0155"),
        ({"value": 0.0155, "stderr": 0.0021}, "0.0155 ± 0.0021"),
        ({"value": 0.2107, "format": ".2%"}, "21.07%"),
        ({"value": 19176.264, "format": ".2f", "unit": "MiB"}, "19176.26MiB"),
        ({"value": 4.749890e16, "format": ".6e"}, "4.749890e+16"),
    ],
)
def test_values_as_the_card_prints_them(value, text):
    assert show(value) == text


def test_the_card_line_by_line(tmp_path):
    leave(tmp_path)
    card = render(tmp_path)
    assert re.match(HEADER, card), card
    rest = card[re.match(HEADER, card).end() :]
    assert rest.startswith(SECTION + "\n\n## Summary\n\n")
    assert re.search(rf"## Summary\n\n{BLOAT}\nTotal wall clock time: 2h53m\n$", rest)
    assert "/home/somebody" not in card


def test_tables(tmp_path):
    columns = [["Text Type", ""], ["Bytes", "d"], ["GPT-2 Ratio", ".2f"], ["Relative Diff %", "+.1%"]]
    rows = [
        ["news", 1819, 4.5025, 0.0817],
        ["korean", 893, 2.453, -0.986],
        ["not | here:\nno network", None, None, None],
    ]
    table = {"title": "Comparison with GPT-2", "columns": columns, "rows": rows}
    leave(tmp_path, "tok_eval", card=[], metrics={}, tables=[table, table])
    markdown = """### Comparison with GPT-2

| Text Type | Bytes | GPT-2 Ratio | Relative Diff % |
|-----------|-------|-------------|-----------------|
| news | 1819 | 4.50 | +8.2% |
| korean | 893 | 2.45 | -98.6% |
| not \\| here: no network | - | - | - |
"""
    section = f"## Tokenizer evaluation\ntimestamp: 2025-10-24 01:20:23\n\n{markdown}\n{markdown}\n\n## Summary\n"
    assert section in render(tmp_path)
    assert terminal_table(table).splitlines()[1:3] == [
        "Text Type  Bytes  GPT-2 Ratio  Relative Diff %",
        "news        1819         4.50            +8.2%",
    ]


def test_stages_in_order_unknown_ones_last_and_none_lost(tmp_path):
    for stage, tag in [("zebra", "x"), ("tok_eval", "default"), ("ant", "x"), ("tok_train", "b"), ("tok_train", "a")]:
        leave(tmp_path, stage, tag)
    names = ["Tokenizer training (a)", "Tokenizer training (b)", "Tokenizer evaluation", "ant", "zebra"]
    assert headings(render(tmp_path)) == ["Environment", *names, "Summary"]


def test_the_summary_of_headline_metrics(tmp_path):
    stages = (
        *STAGES[:4],
        Stage("base_eval", "Base model evaluation", column="BASE", headline=("CORE", "GSM8K")),
        Stage("mid_eval", "Chat evaluation mid", column="MID", headline=("GSM8K",)),
    )
    leave(tmp_path, "base_eval", "old", metrics={"CORE": 0.1}, timestamp="2025-10-24T01:00:00.000+00:00")
    leave(tmp_path, "base_eval", "new", metrics={"CORE": {"value": 0.0155, "stderr": 0.002}, "other": 1})
    leave(tmp_path, "mid_eval", metrics={"GSM8K": 0.0023})
    table = """| Metric          | BASE     | MID      |
|-----------------|----------|----------|
| CORE            | 0.0155 ± 0.0020 | -        |
| GSM8K           | -        | 0.0023   |
"""
    assert table in render(tmp_path, stages=stages)


def test_a_damaged_outcome_is_named(tmp_path, capsys):
    leave(tmp_path, "tok_eval")
    leave(tmp_path).write_text('{"stage": ')
    leave(tmp_path, "bake", tables=[{"title": "no columns"}])
    card = render(tmp_path)
    assert headings(card) == ["Environment", "Tokenizer training", "Tokenizer evaluation", "bake", "Summary"]
    assert "tok_train/default/outcome.json is damaged: Expecting value" in card
    assert "bake/default/outcome.json is damaged: " in card
    assert str(tmp_path) not in card
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(" is damaged")[0] for line in errors] == [
        "report: tok_train/default/outcome.json",
        "report: bake/default/outcome.json",
    ]


def test_only_damaged_outcomes(tmp_path):
    leave(tmp_path).write_text("")
    card = render(tmp_path)
    assert "- Platform: " in card
    assert "Run started" not in card


def test_bloat_counts_what_git_tracks_or_what_lies_there(tmp_path):
    leave(tmp_path / "base")
    root = tmp_path / "source"
    (root / "target").mkdir(parents=True)
    (root / "a.py").write_text("import os\n" * 3)
    (root / "b.md").write_text("# ü")
    (root / "c.txt").write_text("no source")
    (root / "target/d.rs").write_text("built\n")
    (root / "requirements.lock").write_text("a==1\n" * 2220)
    expected = "- Characters: 33\n- Lines: 4\n- Files: 2\n- Tokens (approx): 8\n"
    expected += "- Dependencies (requirements.lock lines): 2,220\n"
    assert render(tmp_path / "base", root).count(expected) == 2  # header and summary
    subprocess.run(["git", "init"], cwd=root, check=True, capture_output=True)
    subprocess.run(["git", "add", "a.py"], cwd=root, check=True)
    assert "- Characters: 30\n- Lines: 3\n- Files: 1\n" in render(tmp_path / "base", root)


def test_the_command(tmp_path, base, python):
    leave(base)
    out = tmp_path / "cards" / "card.md"
    done = python("-m", "nanochat.report", "--out", str(out))
    assert (done.returncode, done.stdout) == (0, f"report card: {out}\n")
    assert SECTION in out.read_text(encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(base, elsewhere)
    done = python("-m", "nanochat.report", f"--out={out}")
    assert done.returncode == 2
    assert (
        done.stderr == f"error: no stage has left an outcome below {base}, run one first or name another --base-dir\n"
    )
    assert python("-m", "nanochat.report", f"--out={out}", f"--base_dir={elsewhere}").returncode == 0
    done = python("-m", "nanochat.report", f"--out={tmp_path}", f"--base-dir={elsewhere}")
    assert (done.returncode, done.stderr) == (2, f"error: --out={tmp_path} is a folder, name a file\n")


def test_it_works_outside_a_checkout(tmp_path, base, python):
    leave(base, environment={})
    copy = tmp_path / "unpacked"
    root = Path(__file__).parent.parent
    shutil.copytree(root / "nanochat", copy / "nanochat", ignore=shutil.ignore_patterns("__pycache__"))
    done = python("-m", "nanochat.report", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "## Tokenizer training" in (copy / "report.md").read_text(encoding="utf-8")
