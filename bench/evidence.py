"""Make the committed report cards again, from the code of the newest commit: `bash runs/evidence.sh`.

    bash runs/evidence.sh --check            how far behind each card is; nothing is started
    bash runs/evidence.sh --only=main,cpu    some of them; studies that have not been run yet (PLANNED) only in this way
    bash runs/evidence.sh --only=speed       the speed table of README.md, see bench/speed.py

The runs have a checkout and base folders of their own, in `NANOCHAT_BASE_DIR/evidence/COMMIT`: the same command goes on
with what was stopped, as long as the commit is the same. A card and its pictures are copied into the tree when its run
has ended; committing them is left to you.
"""

import argparse
import json
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

from bench import speed
from bench.findings import Findings, add_json
from nanochat.data import hub
from nanochat.data.corpus import CORPORA
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
    tracks: Sequence[str] = ()  # whose code its commands run; it belongs to the first
    tag: str = ""  # of the outcomes in the card, or several, the last command's last; empty: all of the base folder
    text: str = ""  # corpus for --data of its commands, unless --text has another text; empty: they take none

    @property
    def code(self) -> tuple[str, ...]:
        """What its figures depend on, for git."""
        own = [path for track in self.tracks for path in (f"tracks/{track}", f":!tracks/{track}/tests")]
        return (*TRUNK, *own, ":!*.md")


SPEED = "speed"  # the name of the table of README.md, beside those of cards
SETUP = "bash runs/setup.sh"
SPEEDRUN = "bash speedrun.sh"
PYTHON = ".venv/bin/python"
BRING = f"{PYTHON} -m tracks.bases.bring --from=hub:"
SMOL = f"{BRING}HuggingFaceTB/SmolLM2-135M-Instruct --tag=smol --source=base"
BROUGHT = ("bases", "export")  # a public model is written by the code of imported checkpoints
REMIXED = ("benchmarks", "chatdata")  # tasks, and styles and options of them
RECURSION = f"{PYTHON} -m tracks.recursion"
# The model of R in the comparison of tracks.recursion.run; with --carry a batch comes once for each of four exits.
SMALL = (
    "--depth=2 --width=128 --head-dim=32 --max-seq-len=256 --window-pattern=L --total-batch-size=2048 --data=world"
    " --eval-bytes=100000 --sample-every=-1"
)
AS_R = f"{SMALL} --num-iterations=300 --warmup-steps=20 --grad-clip=1 --eval-every=50"
SEEDS = (1, 2, 3)
EARLY = (
    "--mixture=World-Sums%50,World-Chat%50 --num-iterations=42 --init-lr-frac=0.5 --eval-every=-1"
    " --eval-metrics-every=-1 --chat-temperature=0.2"
)
SAMPLED = "--task=World-Sums --max-new-tokens=100 --eval-every=-1 --save-every=-1"
# With and without --carry, each with 300 and with 1200 steps of the optimizer, on the same text. The weight decay of a
# step goes with the square root of the batch, which these flags undo.
CARRIED = {
    "together": "--num-iterations=300 --eval-every=50",
    "carry": "--carry --num-iterations=1200 --eval-every=200",
    "together-small": "--total-batch-size=512 --weight-decay=0.56 --num-iterations=1200 --eval-every=200",
    "carry-large": "--carry --total-batch-size=8192 --weight-decay=0.14 --num-iterations=300 --eval-every=60",
}
CARDS = [
    Card("main", "report.md", [f"{SPEEDRUN} --scale=embedded"], 0.15),
    Card("cpu", "report/cpu.md", [f"{SPEEDRUN} --scale=cpu --seconds=1800"], 1.2),
    Card(
        "golf",
        "tracks/golf/card.md",
        [f"{PYTHON} -m tracks.golf.run --scale=embedded --ablate --seeds=3"],
        1.2,
        ["golf"],
        "golf-embedded",
    ),
    Card(
        "recursion",
        "tracks/recursion/card.md",
        [f"{PYTHON} -m tracks.recursion.run --seeds=3"],
        2.0,
        ["recursion"],
        "recursion",
    ),
    Card(
        "recursion-sudoku",
        "tracks/recursion/card_sudoku.md",
        [f"{PYTHON} -m tracks.recursion.sudoku --seeds=3"],
        0.9,
        ["recursion"],
        "puzzles",
    ),
    Card(
        "recursion-carry",
        "tracks/recursion/card_carry.md",
        [
            f"{PYTHON} -m scripts.tok_train --vocab-size=1024 --data=world",
            *(
                f"{RECURSION}.train {SMALL} --seed={seed} --tag={name}-{seed} {flags}"
                for seed in SEEDS
                for name, flags in CARRIED.items()
            ),
            f"{RECURSION}.pairs --runs=carry --against=together --seeds=3 --tag=same-rows",
            f"{RECURSION}.pairs --runs=carry --against=together-small --seeds=3 --tag=same-steps",
            f"{RECURSION}.pairs --runs=carry-large --against=together --seeds=3 --tag=as-few-steps",
        ],
        1.0,
        ["recursion"],
        "same-rows,same-steps,as-few-steps",
    ),
    Card(
        "lab",
        "tracks/lab/card.md",
        [
            f"{PYTHON} -m tracks.lab.embedded --final",
            f"{PYTHON} -m tracks.lab.leaderboard --runs='chat_eval_sft/lab-*'"
            " --suite=World-Facts,World-Sums,World-Korean,World-Choices --tag=lab-board",
        ],
        6.0,
        ["lab", "chatdata"],
        "lab,lab-broken,lab-board",  # its broken runs are a lab of their own
    ),
    Card(
        "lab-rates",
        "tracks/lab/card_rates.md",
        [
            f"{SPEEDRUN} --scale=embedded --until=base_train",
            # A model that solves a part of the sums, and pairs of its own answers.
            f"{PYTHON} -m scripts.chat_sft --source=base --model-tag=default --tag=early {EARLY}",
            f"{PYTHON} -m tracks.lab.run --spec=tracks/lab/specs/rl.toml --kind=rates --jobs=2",
            f"{PYTHON} -m scripts.chat_rl --tag=early --init-lr-frac=0 --num-iterations=40 {SAMPLED}",
            f"{PYTHON} -m scripts.rollouts --tag=early --pairs=out/sums.jsonl",
            f"{PYTHON} -m tracks.lab.run --spec=tracks/lab/specs/dpo.toml --kind=rates --jobs=2",
            f"{PYTHON} -m tracks.lab.run --spec=tracks/lab/specs/shapes.toml --jobs=2 --final",
        ],
        0.6,
        ["lab", "chatdata", "preferences"],
        "rl-rates,dpo-rates,shapes",
    ),
    Card(
        "chatdata", "tracks/chatdata/card.md", [f"{PYTHON} -m tracks.chatdata.agreement"], 0.02, ["chatdata"], "rules"
    ),
    Card(
        "two_bases",
        "tracks/lab/two_bases.md",
        [
            SMOL,
            f"{BRING}google/gemma-3-270m --tag=gemma --source=base",
            # One at a time: two runs of Gemma side by side take more than 24 GB.
            f"{PYTHON} -m tracks.lab.run --spec=tracks/lab/specs/two_bases.toml --jobs=1 --final",
        ],
        7.7,
        ["lab", *BROUGHT, *REMIXED],
        "two_bases",
    ),
    Card(
        "bases",
        "tracks/bases/card.md",
        [SMOL, f"{PYTHON} -m tracks.bases.practice --model-tag=smol --task=Alpaca-Part-Constrained"],
        2.5,
        [*BROUGHT, "benchmarks", "preferences"],  # it practises on their constraints, and makes pairs
        "practice",
    ),
    Card(
        "bases-chats",
        "tracks/bases/card_chats.md",
        [
            SMOL,
            f"{PYTHON} -m tracks.bases.practice --model-tag=smol --tag=practice-chats --kinds=sft"
            " --mixture=GSM8K%60,SpellingBee%20,Multi-Turn%20 --sft-steps=60 --task=Alpaca-Part-Constrained",
        ],
        1.1,
        [*BROUGHT, "benchmarks", "preferences"],
        "practice-chats",
    ),
]

# Studies that have not been run: they have no card, and only --only runs them. One that has a card goes into CARDS.
MIXED = "mixed-text"
PLANNED = [
    Card(
        "golf-claims",
        "tracks/golf/card_claims.md",
        [f"{PYTHON} -m tracks.golf.claims"],
        7.0,
        ["golf"],
        "claims-cpu",
        MIXED,
    ),
    Card(
        "golf-cpu",
        "tracks/golf/card_cpu.md",
        [f"{PYTHON} -m tracks.golf.run --scale=cpu"],
        1.7,
        ["golf"],
        "golf-cpu",
        MIXED,
    ),
    Card(
        "recursion-larger",
        "tracks/recursion/card_larger.md",
        [f"{RECURSION}.run --seeds=3 --depth=4 --width=256 --steps=2000 --tag=larger"],
        65.0,
        ["recursion"],
        "larger",
        MIXED,
    ),
    Card(
        "recursion-curriculum",
        "tracks/recursion/card_curriculum.md",
        [
            f"{RECURSION}.run --seeds=3 --curriculum=2,3,4 --tag=curriculum",
            # R without it, for the difference that it makes.
            *(
                f"{RECURSION}.train {AS_R} --seed={seed} --tokenizer-tag=curriculum --tag=all-exits-{seed}"
                for seed in SEEDS
            ),
            f"{RECURSION}.pairs --runs=curriculum-R --against=all-exits --seeds=3 --tag=curriculum",
        ],
        3.2,
        ["recursion"],
        "curriculum",
    ),
    Card(
        "remix-small",
        "tracks/lab/card_remix_small.md",
        [SMOL, f"{PYTHON} -m tracks.lab.run --spec=tracks/lab/specs/remix_small.toml --jobs=2 --final"],
        4.0,
        ["lab", *BROUGHT, *REMIXED],
        "remix_small",
    ),
]


# Cards that are older than what today's code writes, or are not there, and why they have not been made: `--check` says
# so, and a test compares all others of the trunk with the card that today's code writes. No test makes those of tracks.
AWAITING: dict[str, str] = {
    "recursion-carry": "it lacks the exits, and the runs with as many steps on smaller batches; 30 minutes more",
    "recursion-sudoku": "it lacks the time of all training, which today's code writes; 50 minutes",
    "lab": (
        "it is by an older decision rule, with a least gain, that no longer exists, and by the command scripts.lab;"
        " nothing in it is confirmed on other seeds, and without --final it has no held-out scores and no ratio of"
        " recipe to final cost; 6 hours and more"
    ),
    "golf-claims": "7 hours of two quiet cores, or some less, with mixed-text or the text of --text",
    "golf-cpu": "100 minutes of two quiet cores, with mixed-text or the text of --text",
    "recursion-larger": "65 hours of two cores as --dry-run estimates, with mixed-text or the text of --text",
    "recursion-curriculum": (
        "3 hours of two quiet cores; R trains two exits, then three, then four, and is compared with R without that"
    ),
    "remix-small": "hours of two cores, and SmolLM2; remix.toml needs a d20, which takes GPUs",
}


def cards(of: Sequence[Card] | None = None) -> list[Card]:
    """Return the cards of this tree, or some of them: a track may have been deleted."""
    return [card for card in (CARDS if of is None else of) if (ROOT / card.path).parent.is_dir()]


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
    return [card.name, card.path, *commits_since(commit_of(card), card.code)]


def commits_since(commit: str, code: Sequence[str], date: str | None = None) -> list[str | int | None]:
    """Return the commit and its date, commits since, and how many of them touched the code.

    date: for a commit that is not known, or of a history that is not here.
    """
    try:
        date = git("log", "-1", "--format=%cs", commit) if commit else date
        since = f"{commit}..HEAD" if commit else ""
    except subprocess.CalledProcessError:
        since = ""
    if not since:
        return [commit or None, date, None, None]
    return [commit, date, *(int(git("rev-list", "--count", since, "--", *paths)) for paths in ([], code))]


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


def run(command: str, home: Path, base: Path, name: str) -> None:
    """Run a command of a card in its checkout."""
    print0(f"evidence: {name}: {command}")
    environment = os.environ | {"NANOCHAT_BASE_DIR": str(base)}
    done = subprocess.run(["bash", "-c", command], cwd=home, env=environment)
    if done.returncode:
        raise UserError(f"{command} has failed (exit code {done.returncode}): run the same command again to go on")


def make(card: Card, home: Path, base: Path, text: str = "") -> None:
    """Run the commands of a card, and put the card into the tree. text: a folder for a card that takes one."""
    commands = card.commands
    if card.text:
        commands = [f"{command} --data={shlex.quote(text or card.text)}" for command in commands]
    report = f"{PYTHON} -m nanochat.report --out={shlex.quote(card.path)}"
    if card.tag:
        report += f" --tag={card.tag}"
    for command in [SETUP, *commands, report]:
        run(command, home, base, card.name)
    old = ROOT / card.path
    if old.exists():
        for picture in pictures(old):
            picture.unlink(missing_ok=True)
    for made in [home / card.path, *pictures(home / card.path)]:
        place = ROOT / made.relative_to(home)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, place)
    print0(f"evidence: {card.path} is new")


# ---- the speed table ----


def speed_age() -> list[str | int | None]:
    """Return the row of the speed table, whose age is that of its oldest figure."""
    oldest = min(speed.read(ROOT).values(), key=lambda one: one["date"])
    commit = (oldest["commit"] or "").split(" ")[0]
    return [SPEED, speed.PAGE, *commits_since(commit, TRUNK, oldest["date"])]


def needed_values(flags: argparse.Namespace) -> dict[speed.Needed, str]:
    """Return paths to what the benchmarks need: from flags, or variables; the text may be a corpus of this machine."""
    values = {}
    for one in speed.NEEDED:
        given = getattr(flags, one.flag.removeprefix("--")) or os.environ.get(one.variable, "")
        for path in filter(None, given.split(",")):
            if not Path(path).is_dir():
                raise UserError(f"{one.flag}={given}: there is no folder {path}, give a {one.text}")
        values[one] = ",".join(str(Path(path).resolve()) for path in given.split(",") if path)
    if not values[speed.TEXT]:
        shards = [hub.find(file) for file in CORPORA["mixed-text"].files()]
        if shards[0]:
            values[speed.TEXT] = str(shards[0].parent)
    return values


def measure_speed(home: Path, folder: Path, values: dict[speed.Needed, str]) -> None:
    """Run the benchmarks that have what they need, and write their rows into bench/speed.json and README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for benchmark in speed.COMMANDS:
        words, missing = speed.command_of(benchmark, values)
        if missing:
            needs = ", ".join(f"{one.flag} or {one.variable} ({one.text})" for one in missing)
            print0(f"evidence: bench.{benchmark} is left out, it needs {needs}")
            continue
        path = folder / f"{benchmark}.json"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            run(f"{PYTHON} {shlex.join([*words, f'--json={unfinished}'])}", home, folder / "base", SPEED)
            unfinished.rename(path)
        found[benchmark] = json.loads(path.read_text(encoding="utf-8"))
    record, stays = speed.update(speed.read(ROOT), found)
    speed.write(ROOT, record)
    print0(*(f"evidence: {sentence}" for sentence in stays), sep="\n")
    print0(f"evidence: {len(speed.ROWS) - len(stays)} of {len(speed.ROWS)} rows of the table in {speed.PAGE} are new")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bash runs/evidence.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say how far behind each card is")
    committed = [card.name for card in cards()]
    known = {card.name: card for card in [*cards(), *cards(PLANNED)]}
    names = [*known, SPEED]
    with_text = [SPEED, *(card.name for card in known.values() if card.text)]
    parser.add_argument("--only", default="", help=f"some of {', '.join(names)}")
    parser.add_argument("--reference", default="", help=f"{speed.REFERENCE.text}, for {SPEED}")
    parser.add_argument("--peers", default="", help=f"{speed.PEERS.text}, for {SPEED}")
    parser.add_argument("--text", default="", help=f"{speed.TEXT.text}, for {', '.join(with_text)}")
    add_json(parser)
    flags = parser.parse_args(words)
    findings = Findings("evidence", flags.json)
    usual = names if flags.check else [*committed, SPEED]
    asked = flags.only.split(",") if flags.only else usual
    for name in asked:
        if name not in names:
            raise UserError(f"--only={name}: there is no such card, choose from {', '.join(names)}")
    values = needed_values(flags)
    chosen = [known[name] for name in asked if name != SPEED]
    rows = [*map(age, chosen), *([speed_age()] if SPEED in asked else [])]
    columns = "Card | File | Commit | Date | Commits since:d | of its code:d"
    findings.show(table_of("Committed cards", columns, rows))
    for card in chosen:
        if card.name in AWAITING:
            state = "lacks what today's code writes, and waits" if card.name in committed else "has not been made yet"
            print0(f"evidence: {card.path} {state}: {AWAITING[card.name]}")
    if flags.check:
        findings.write()
        return
    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no"):
        print0(f"evidence: the tree has changes; the cards are made from commit {commit} without them")
    hours = sum(card.hours for card in chosen) + (speed.HOURS if SPEED in asked else 0)
    print0(f"evidence: about {hours:.1f} hours on two quiet cores, one card after the other")
    folder = base_dir() / "evidence" / commit
    home = checkout(folder, commit)
    for card in chosen:
        make(card, home, folder / card.name, values[speed.TEXT] if flags.text else "")
    if SPEED in asked:
        run(SETUP, home, folder / SPEED, SPEED)
        measure_speed(home, folder / SPEED, values)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print0(f"error: {error}", file=sys.stderr)
        sys.exit(2)
