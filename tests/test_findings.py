"""bench.findings: --json of every benchmark, on its own and with a benchmark that takes seconds."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, checked

from bench.common import Figure, compare
from bench.findings import Findings
from nanochat.log import table_of

# Modules of bench/ that are commands; without a table: they start other commands.
COMMANDS = sorted(path.stem for path in ROOT.glob("bench/*.py") if 'if __name__ == "__main__":' in path.read_text())
NO_TABLE = {
    "common": "a process of a benchmark",
    "gpu": "starts other benchmarks, and has them write their JSON",
}
QUICK = "--rows 1 --length 32 --heads 1 --head-dim 16 --windows 0 --repeats 1 --only sdpa flash4".split()
KEYS = {"benchmark", "command", "date", "commit", "machine", "versions", "rows"}


def run(module: str, *flags: str, python: tuple[str, ...] = ()):
    words = [sys.executable, *python, "-m", f"bench.{module}", *flags]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("module", [name for name in COMMANDS if name not in NO_TABLE])
def test_every_benchmark_has_the_flag_and_its_help_is_quick(module) -> None:
    done = checked(run(module, "--help", python=("-X", "importtime")), 0)
    assert "--json [FILE]" in done.stdout
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_folder_that_is_not_there_is_named_before_the_work() -> None:
    for module, flags in (("attention", QUICK), ("scaling", ())):
        done = run(module, *flags, "--json=/no/such/file.json")
        assert done.returncode == 2
        assert "there is no folder /no/such for /no/such/file.json" in done.stderr


@pytest.mark.timeout(300)
def test_a_benchmark_prints_its_object_alone_or_writes_it(tmp_path: Path) -> None:
    printed = checked(run("attention", *QUICK, "--json"), 0)
    alone = json.loads(printed.stdout)
    assert "| sdpa | 0 |" in printed.stderr
    written = checked(run("attention", *QUICK, f"--json={tmp_path / 'found.json'}"), 0)
    assert "| sdpa | 0 |" in written.stdout
    assert "Platform: " in written.stdout
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    for one in (alone, found):
        assert one.keys() == KEYS
        assert (one["benchmark"], "CPUs" in one["machine"], "torch" in one["versions"]) == ("attention", True, True)
        assert one["command"].startswith("python -m bench.attention --rows 1 ")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])
        fast, other = one["rows"]
        assert (fast["kernel"], fast["window"], fast["seconds"] > 0) == ("sdpa", 0, True)
        assert other["kernel"] == "flash4"


def test_contenders_have_medians_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("rate", "tokens/s", less_is_better=False), Figure("memory", "MB")]
    times = {"ours": [4.0, 6.0, 5.0], "slow": [1.0, 2.0, 3.0]}
    runs = {name: lambda number, own=own: {"rate": own[number], "memory": 10.0} for name, own in times.items()}
    findings = Findings("made", "")
    compare(findings, "a case", runs | {"absent": lambda number: {"failure": "not installed"}}, figures, 3)
    ours, slow, absent = findings.object()["rows"]
    assert (ours["case"], ours["name"], ours["failed"]) == ("a case", "ours", False)
    assert ours["rate"] == {"unit": "tokens/s", "median": 5.0, "best": 6.0, "values": [6.0, 5.0, 4.0], "ratio": 1.0}
    assert slow["rate"] == {"unit": "tokens/s", "median": 2.0, "best": 3.0, "values": [3.0, 2.0, 1.0], "ratio": 2.5}
    assert absent["rate"] is None
    assert (absent["failed"], absent["note"]) == (True, "not installed")
    assert "5.00 (6.00) 1.00x" in capsys.readouterr().out


def test_a_table_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings("made", str(tmp_path / "a.json"))
    findings.show(table_of("Sizes", "Name | Bytes:,d | Share:.1%", [["a", 1234, 0.25], ["b", None, 0.5]]))
    findings.finish()
    said = capsys.readouterr().out
    assert "1,234" in said
    assert "25.0%" in said
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert found["rows"] == [
        {"table": "Sizes", "Name": "a", "Bytes": 1234, "Share": 0.25},
        {"table": "Sizes", "Name": "b", "Bytes": None, "Share": 0.5},
    ]
