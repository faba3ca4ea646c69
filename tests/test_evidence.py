"""bench.evidence: how far behind a committed card is, and a card that is made again."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, checked
from outcomes import leave

from bench import evidence
from bench.evidence import CARDS, TRUNK, Card, age, cards
from nanochat.errors import UserError
from nanochat.paths import write_text

CARD = "# nanochat training report\n"
LOSS = {"title": "Loss", "x": "tokens", "y": "nats", "series": {"train": [[0, 9], [5.0, 2.0]]}}
# In place of .venv/bin/python: the report of this tree, for a base folder that has an outcome.
PYTHON = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} "$@"
"""


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with a card of its first commit, and of three commits since."""
    root = tmp_path / "tree"
    write_text(root / "nanochat/gpt.py", "1")
    write_text(root / "runs/setup.sh", "exit 0\n")
    write_text(root / ".venv/bin/python", PYTHON)
    (root / ".venv/bin/python").chmod(0o755)
    git(tmp_path, "init", "tree")
    git(root, "add", ".")
    git(root, "commit", "-m", "First")
    commit = git(root, "rev-parse", "--short", "HEAD")
    write_text(root / "report.md", f"- Commit: {commit} (clean)\n\n![Loss](report/old.svg)\n")
    write_text(root / "report/old.svg", "<svg/>")
    write_text(root / "report/cpu.md", "another card")
    for name, text in (("nanochat/gpt.py", "2"), ("docs/gpt.md", "a page"), ("nanochat/page.md", "another")):
        write_text(root / name, text)
        git(root, "add", ".")
        git(root, "commit", "-m", name)
    monkeypatch.setattr(evidence, "ROOT", root)
    monkeypatch.setattr(evidence, "CARDS", [Card("main", "report.md", ["bash run.sh"], 0.1)])
    return root


def test_a_card_is_as_far_behind_as_commits_changed_its_code(tree) -> None:
    commit = git(tree, "rev-list", "--max-parents=0", "HEAD")[:7]
    [card] = cards()
    name, path, found, date, since, touched = age(card)
    assert (name, path, since, touched) == ("main", "report.md", 3, 1)
    assert found == commit
    assert date == git(tree, "log", "-1", "--format=%cs")
    write_text(tree / "report.md", "- Commit: 1234567 (clean)\n")
    assert age(card) == ["main", "report.md", "1234567", None, None, None]
    (tree / "report.md").unlink()
    assert age(card) == ["main", "report.md", None, None, None, None]


def test_a_card_is_made_in_a_checkout_and_goes_on_after_a_failure(tree, base, capsys) -> None:
    """The first attempt fails after its first step; the second one does only what is left."""
    write_text(tree / "run.sh", 'echo step >>"$NANOCHAT_BASE_DIR/steps"\n[ -e "$NANOCHAT_BASE_DIR/go" ] || exit 3\n')
    git(tree, "add", ".")
    git(tree, "commit", "-m", "The run")
    commit = git(tree, "rev-parse", "--short", "HEAD")
    own = base / "evidence" / commit / "main"
    leave(own, curves=[LOSS])
    before = (tree / "report.md").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"bash run.sh has failed \(exit code 3\): run the same command again to go on"):
        evidence.main([])
    assert (tree / "report.md").read_text(encoding="utf-8") == before
    write_text(own / "go", "")
    evidence.main(["--only=main"])
    assert (own / "steps").read_text() == "step\nstep\n"
    text = (tree / "report.md").read_text(encoding="utf-8")
    assert "![Loss](report/tok_train-default-1.svg)" in text
    assert (tree / "report/tok_train-default-1.svg").read_text(encoding="utf-8").startswith("<svg")
    assert not (tree / "report/old.svg").exists()
    assert (tree / "report/cpu.md").read_text() == "another card"
    assert git(own.parent / "checkout", "rev-parse", "--short", "HEAD") == commit
    assert "about 0.1 hours" in capsys.readouterr().out


def test_a_card_that_is_not_there() -> None:
    done = checked(
        subprocess.run(
            ["bash", "runs/evidence.sh", "--check", "--only=cake"], cwd=ROOT, capture_output=True, text=True
        ),
        2,
    )
    assert done.stderr.startswith("error: --only=cake: there is no such card, choose from main, cpu")


def test_every_committed_card_is_listed_with_the_code_it_depends_on() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("report/*.md"))}
    texts |= {path: path.read_text(encoding="utf-8") for path in ROOT.glob("tracks/*/*.md")}
    committed = {path.relative_to(ROOT).as_posix() for path, text in texts.items() if text.startswith(CARD)}
    assert committed == {card.path for card in cards()}
    for card in CARDS:
        assert not card.track or card.path.startswith(f"tracks/{card.track}/")
    for path in TRUNK:
        assert (ROOT / path).exists()
