"""Outcomes as stages leave them, of a machine that is not this one."""

import json
import re
from pathlib import Path

from nanochat.paths import write_json

ENVIRONMENT = json.loads("""{
    "Git Information": {"Branch": "main", "Commit": "f1e8954 (dirty)"},
    "Hardware": {"Platform": "Linux", "GPUs": "8x NVIDIA H100 80GB HBM3"},
    "Software": {"Python": "3.10.12"},
    "Bloat": {"Characters": {"value": 474203, "format": ",d"}}
}""")
RECORD = json.loads("""{
    "started": "2025-10-23T22:27:01.000+00:00", "timestamp": "2025-10-24T01:20:23.000+00:00",
    "command": "python -m scripts.tok_train",
    "config": {"max_chars": 10000000000, "doc_cap": 10000, "vocab_size": 65536, "data": "/home/somebody"},
    "card": ["max_chars", "doc_cap", "vocab_size"], "metrics": {"train_time": 167.3429, "num_special_tokens": 9},
    "tables": [], "seconds": 10402.0, "artifacts": {}, "versions": {}
}""")


def sections(card: str):
    """The sections of a card in Markdown, by their headings."""
    return dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=\n## |\Z)", card, re.MULTILINE | re.DOTALL))


def section_fields(text: str) -> list[str]:
    """Return the fields of a section in order: labels, columns and rows of tables, and the time."""
    found = []
    table = ""
    lines = [*text.splitlines(), ""]
    for number, line in enumerate(lines):
        if line.startswith("### "):
            table = f"{line.removeprefix('### ')} | "
        elif line.startswith("| --"):
            found += [f"{table}{cell.strip()}" for cell in lines[number - 1].strip("| ").split(" | ")]
        elif line.startswith("| ") and not lines[number + 1].startswith("| --"):
            found.append(f"{table}row {line.strip('| ').split(' | ')[0].strip()}")
        elif match := re.match(r"!\[(.*)\]", line):
            found.append(f"picture {match[1]}")
        elif match := re.match(
            r"- (Tokens : Params ratio|[^:]+):|(timestamp|Generated|Run started|Total [\w ]+):", line
        ):
            found.append(match[1] or match[2])
    return found


def card_fields(card: str) -> dict[str, list[str]]:
    """Return the fields of a card by section, and those of its head by its parts; "" is above them."""
    head, _, rest = card.partition("\n---\n")
    found = {"": section_fields(head)}
    for level, text in (("### ", head), ("## ", rest)):
        for section in re.split(f"^{level}", text, flags=re.MULTILINE)[1:]:
            title, _, content = section.partition("\n")
            found[title] = section_fields(content)
    return found


def leave(base: Path, stage: str = "tok_train", tag: str = "default", **changes):
    """An outcome as a stage leaves it; by default that of the reference's tokenizer."""
    record = {"stage": stage, "tag": tag, **RECORD, "environment": ENVIRONMENT}
    path = base / stage / tag / "outcome.json"
    write_json(path, record | changes)
    return path
