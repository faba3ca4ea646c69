"""Make the committed report cards again, from the code of the newest commit: `bash runs/evidence.sh`.

    bash runs/evidence.sh --check            how far behind each card is; nothing is started
    bash runs/evidence.sh --only=main,cpu    some of them

The runs have a checkout and base folders of their own, in `NANOCHAT_BASE_DIR/evidence/COMMIT`: the same command goes on
with what was stopped, as long as the commit is the same. A card and its pictures are copied into the tree when its run
has ended; committing them is left to you.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from bench.findings import Findings, add_json
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.paths import base_dir

ROOT = Path(__file__).resolve().parent.parent
TRUNK = ("nanochat", "scripts", "tasks", "rustbpe", "speedrun.sh", "requirements.lock")


@dataclass(frozen=True)
class Card:
    """A committed report card."""

    name: str
    path: str  # of the Markdown file; pictures are where its links say
    commands: Sequence[str]  # in a checkout; the report of their base folder is the card
    hours: float  # on two quiet CPU cores
    track: str = ""  # that it belongs to

    @property
    def code(self) -> tuple[str, ...]:
        """What its figures depend on, for git."""
        own = (f"tracks/{self.track}", f":!tracks/{self.track}/tests") if self.track else ()
        return (*TRUNK, *own, ":!*.md")


SPEEDRUN = "bash speedrun.sh"
PYTHON = ".venv/bin/python"
CARDS = [
    Card("main", "report.md", [f"{SPEEDRUN} --scale=embedded"], 0.15),
    Card("cpu", "report/cpu.md", [f"{SPEEDRUN} --scale=cpu --seconds=1800"], 1.2),
    Card("golf", "tracks/golf/card.md", [f"{PYTHON} -m tracks.golf.run --ablate --seeds=3"], 1.2, "golf"),
    Card("recursion", "tracks/recursion/card.md", [f"{PYTHON} -m tracks.recursion.run --seeds=3"], 1.25, "recursion"),
    Card("lab", "tracks/lab/card.md", [f"{PYTHON} -m tracks.lab.embedded"], 6.0, "lab"),
]


def cards() -> list[Card]:
    """Return the cards of this tree: a track may have been deleted."""
    return [card for card in CARDS if (ROOT / card.path).parent.is_dir()]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


# ---- how far behind ----


def commit_of(card: Card) -> str:
    """Return the commit that a card names; "" without a card."""
    path = ROOT / card.path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(r"^- Commit: (\w+)", text, re.MULTILINE)
    return found[1] if found else ""


def age(card: Card) -> list[str | int | None]:
    """Return a row: name, file, commit and its date, commits since, and how many of them touched the code under it."""
    commit = commit_of(card)
    try:
        date = git("log", "-1", "--format=%cs", commit) if commit else None
    except subprocess.CalledProcessError:  # of a history that is not here
        date = None
    if date is None:
        return [card.name, card.path, commit or None, None, None, None]
    since = f"{commit}..HEAD"
    behind = int(git("rev-list", "--count", since))
    touched = int(git("rev-list", "--count", since, "--", *card.code))
    return [card.name, card.path, commit, date, behind, touched]


# ---- make them again ----


def checkout(folder: Path, commit: str) -> Path:
    """Return a clone of this tree at a commit; what is made there by hand stays."""
    home = folder / "checkout"
    if not (home / "speedrun.sh").exists():
        shutil.rmtree(home, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--no-checkout", str(ROOT), str(home))
        subprocess.run(["git", "checkout", "--quiet", "-B", "main", commit], cwd=home, check=True)
    return home


def pictures(card: Path) -> Iterator[Path]:
    """Yield the pictures that a card links to."""
    for link in re.findall(r"^!\[.*\]\((.*)\)$", card.read_text(encoding="utf-8"), re.MULTILINE):
        yield card.parent / unquote(link)


def make(card: Card, home: Path, base: Path) -> None:
    """Run the commands of a card, and put the card into the tree."""
    environment = os.environ | {"NANOCHAT_BASE_DIR": str(base)}
    report = f"{PYTHON} -m nanochat.report --out={shlex.quote(card.path)}"
    for command in ["bash runs/setup.sh", *card.commands, report]:
        print0(f"evidence: {card.name}: {command}")
        done = subprocess.run(["bash", "-c", command], cwd=home, env=environment)
        if done.returncode:
            raise UserError(f"{command} has failed (exit code {done.returncode}): run the same command again to go on")
    old = ROOT / card.path
    if old.exists():
        for picture in pictures(old):
            picture.unlink(missing_ok=True)
    for made in [home / card.path, *pictures(home / card.path)]:
        place = ROOT / made.relative_to(home)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, place)
    print0(f"evidence: {card.path} is new")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bash runs/evidence.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say how far behind each card is")
    parser.add_argument("--only", default="", help=f"some cards: {', '.join(card.name for card in cards())}")
    add_json(parser)
    flags = parser.parse_args(words)
    findings = Findings("evidence", flags.json)
    known = {card.name: card for card in cards()}
    names = flags.only.split(",") if flags.only else list(known)
    for name in names:
        if name not in known:
            raise UserError(f"--only={name}: there is no such card, choose from {', '.join(known)}")
    chosen = [known[name] for name in names]
    columns = "Card | File | Commit | Date | Commits since:d | of its code:d"
    findings.show(table_of("Committed cards", columns, [age(card) for card in chosen]))
    if flags.check:
        findings.write()
        return
    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no"):
        print0(f"evidence: the tree has changes; the cards are made from commit {commit} without them")
    hours = sum(card.hours for card in chosen)
    print0(f"evidence: about {hours:.1f} hours on two quiet cores, one card after the other")
    folder = base_dir() / "evidence" / commit
    home = checkout(folder, commit)
    for card in chosen:
        make(card, home, folder / card.name)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print0(f"error: {error}", file=sys.stderr)
        sys.exit(2)
