"""A series of trials: what it keeps to, its texts, and the copy of the code that judges.

A series begins with the first question. The commit of its incumbent is copied, and from then on that copy asks, trains,
scores and writes: whatever command a person runs hands over to it. The folder of a series has

  referee.json        what was fixed: repository, commit, scale, budget, data, and the secret that seeds follow from
  ask.py              its door: a program that asks the copy
  code/HASH/          the referee and the sides
  text/               documents to learn from, which a side sees
  sealed/             validation text and the holdout, which no side sees
  home/               the tokenizer
  runs/KEY/           checkpoints of what was kept
  trial.jsonl         the ledger
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.paths import (
    base_dir,
    hold_folder,
    read_json,
    read_sha256,
    stage_dir,
    text_sha256,
    write_json,
    write_jsonl,
    write_text,
)
from nanochat.trial.arena import METRICS
from nanochat.trial.decision import Plan
from nanochat.trial.ledger import Ledger
from nanochat.trial.settings import SCALES, BudgetName, ScaleName, TrialScale
from nanochat.trial.sides import commit_of, committed

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus

ROOT_VARIABLE = "NANOCHAT_TRIAL_ROOT"  # set by whoever hands over: the repository that is asked about
FIXED = ("root", "commit", "referee", "scale", "budget", "data", "unsafe")  # of referee.json
SUBSET = 2  # of the documents of a corpus's validation text every second one is the holdout's


@dataclass(frozen=True)
class Question:
    """What is asked. candidate: empty for the working tree, a commit, or flags."""

    candidate: str
    incumbent: str
    flags: str
    series: str
    scale: ScaleName
    budget: BudgetName
    data: str
    plan: Plan
    metrics: Sequence[str]
    unsafe: bool
    json: bool


@dataclass(frozen=True)
class Series:
    """An open series. Its folder is locked."""

    folder: Path
    fixed: Record  # referee.json
    ledger: Ledger

    @property
    def scale(self) -> TrialScale:
        return SCALES[self.fixed["scale"]]

    @property
    def code(self) -> Path:
        return self.folder / "code"

    def documents(self, name: str) -> list[str]:
        return read_json(self.folder / "sealed" / f"{name}.json")

    def check(self) -> None:
        """Raise a UserError if what was fixed, or a text that was made, is not what the ledger's first line says."""
        [first] = self.ledger.of_kind("series")
        missing = sorted(pinned(self.fixed).keys() - first.keys())
        if missing:  # a series of before has a copy of its own that judges, and does not come here
            raise UserError(
                f"{self.ledger.path} has no {missing[0]} in its first line, which this copy of the code writes:"
                " begin another series with --series=NAME"
            )
        changed = [name for name, value in pinned(self.fixed).items() if first[name] != value]
        if changed:
            raise UserError(
                f"{self.folder}/referee.json has another {changed[0].removesuffix('_sha256')} than the ledger:"
                " begin another series with --series=NAME"
            )
        for name, content in first["files"].items():
            path = self.folder / name
            if not path.exists() or read_sha256(path) != content:
                raise UserError(f"{path} was changed after it was made: begin another series with --series=NAME")

    def seed(self, *names: object) -> int:
        """Return a seed that nobody knows before; the same for the same names."""
        text = " ".join(map(str, [self.fixed["secret"], *names]))
        return int(text_sha256(text)[:8], 16) >> 1


def pinned(fixed: Record) -> Record:
    """Return what the ledger's first line has of referee.json: of the secret its hash."""
    return {**{name: fixed.get(name) for name in FIXED}, "secret_sha256": text_sha256(fixed["secret"])}


@contextmanager
def faults_decide_nothing(folder: Path) -> Iterator[None]:
    """Make a UserError of the block's OSErrors: a full disk is a fault of this side, and no candidate is to blame."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror}" if error.errno else str(error)
        raise UserError(f"{what}; nothing is decided by that: mend it and ask again") from None


# ---- the copy that judges ----


def begin(question: Question) -> None:
    """Fix what a series keeps to, at its first question; a UserError if it is asked in another way later."""
    from nanochat.data.corpus import absolute_data

    unknown = sorted(set(question.metrics) - set(METRICS))
    if unknown:  # before anything is fixed
        raise UserError(f"--metric={unknown[0]} is not known, use {', '.join(METRICS)}")
    folder = series_folder(question.series)
    if not (folder / "referee.json").exists():
        with faults_decide_nothing(folder), hold_folder(folder, "--series"):
            if not (folder / "referee.json").exists():
                _fix(question, asked_root(), folder)
    fixed = read_json(folder / "referee.json")
    root = str(asked_root().resolve())
    if fixed.get("root", root) != root:
        raise UserError(f"the series {folder.name} is about {fixed['root']}: begin another one with --series=NAME")
    for name in ("scale", "budget"):
        if getattr(question, name) != fixed[name]:
            raise UserError(
                f"the series {folder.name} has --{name}={fixed[name]}: begin another one with --series=NAME"
            )
    if question.data and absolute_data(question.data) != fixed["data"]:
        raise UserError(f"the series {folder.name} has other text: begin another one with --series=NAME")
    if question.unsafe != fixed["unsafe"]:
        raise UserError(f"the series {folder.name} began with --unsafe-exec={fixed['unsafe']}: begin another one")


def hand_over(name: str) -> None:
    """Let the referee's copy of a series go on in place of this process, unless this is the copy."""
    folder = series_folder(name)
    if not (folder / "referee.json").exists():
        raise UserError(f"there is no series {name} below {folder.parent}")
    copy = folder / "code" / read_json(folder / "referee.json")["referee"]
    if ROOT.resolve() == copy.resolve():
        return
    if ROOT_VARIABLE in os.environ:
        raise UserError(f"{copy} should judge, and {ROOT} runs in its place")
    # Whoever looks at a series from another checkout leaves its door as it is.
    root = read_json(folder / "referee.json").get("root")
    door = write_door(folder, copy, Path(root) if root else asked_root())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-IB", str(door), *sys.argv[1:]])


def write_door(folder: Path, copy: Path, root: Path) -> Path:
    """Write the program that asks a series' copy without a line of the working tree, and return its path."""
    door = folder / "ask.py"
    write_text(door, DOOR.format(copy=str(copy.resolve()), root=str(root.resolve()), base=str(base_dir().resolve())))
    return door


# -I leaves out the working folder, the user's packages and PYTHON* variables.
DOOR = """# Asks the referee of this series: python -IB ask.py, with the flags of scripts.trial.
import os
import runpy
import sys

os.environ["NANOCHAT_TRIAL_ROOT"] = {root!r}
os.environ["NANOCHAT_BASE_DIR"] = {base!r}
os.chdir({copy!r})
sys.path.insert(0, {copy!r})
sys.argv[0] = "scripts.trial"
runpy.run_module("scripts.trial", run_name="__main__", alter_sys=True)
"""


def asked_root() -> Path:
    """Return the repository that is asked about."""
    return Path(os.environ.get(ROOT_VARIABLE) or ROOT)


def series_folder(name: str) -> Path:
    return stage_dir("trial", name)


def _fix(question: Question, root: Path, folder: Path) -> None:
    """Write what a series keeps to."""
    from nanochat.data.corpus import absolute_data

    sandbox.require(question.unsafe)
    data = question.data or SCALES[question.scale].data
    if data:
        _check_secret(data)
    commit = commit_of(root, question.incumbent)
    copy = committed(root, commit, folder / "code")
    if not (copy / "nanochat/trial/referee.py").is_file():
        raise UserError(f"commit {commit[:8]} has no referee: the incumbent has to contain scripts/trial.py")
    folder.chmod(0o700)
    fixed = {
        "root": str(root.resolve()),
        "commit": commit,
        "referee": copy.name,
        "scale": question.scale,
        "budget": question.budget,
        "data": absolute_data(data) if data else "",
        "secret": secrets.token_hex(16),
        "unsafe": question.unsafe,
    }
    write_json(folder / "referee.json", fixed)


def _check_secret(data: str) -> None:
    """Raise a UserError for text that a candidate could write itself: an embedded world follows from its seed."""
    from nanochat.data.corpus import parse_data, world_seed

    if all(world_seed(source) is None for source, _ in parse_data(data)):
        return
    if "auto" in data:
        raise UserError(
            f"--data={data} finds no text on this machine but an embedded world, whose validation text a candidate"
            " could write itself: name a corpus or a folder with --data, or use --scale=embedded, whose world is secret"
        )
    raise UserError(
        f"--data={data} has an embedded world of a known seed, whose validation text a candidate could write itself:"
        " name another text, or use --scale=embedded without --data, whose world has a secret seed"
    )


# ---- texts ----


def open_series(folder: Path) -> Series:
    """Return the series, with its texts, tokenizer and ledger, which the first question makes."""
    fixed = read_json(folder / "referee.json")
    ledger = Ledger(folder / "trial.jsonl")
    series = Series(folder, fixed, ledger)
    if not ledger.of_kind("series"):
        with redirect_stdout(sys.stderr):  # with --json, stdout has the answer alone
            facts = _prepare(series)
        ledger.add("series", **pinned(fixed), **facts)
    series.check()
    return series


def _prepare(series: Series) -> Record:
    """Write the texts and the tokenizer; return their sizes and hashes."""
    import pyarrow as pa

    from nanochat.data.corpus import open_corpus
    from nanochat.tokenizer import Tokenizer
    from nanochat.world.writer import write_world

    scale = series.scale
    with tempfile.TemporaryDirectory() as temporary:
        data = series.fixed["data"]
        if not data:
            seed = int(text_sha256(f"{series.fixed['secret']} world")[:15], 16)
            write_world(Path(temporary, f"world-{seed}"), seed)
            data = f"folder:{temporary}/world-{seed}/text"
            shards = sorted(Path(temporary, f"world-{seed}/text").glob("*.parquet"))
            train, held = _parquet(shards[:-1], scale.train_bytes), _parquet(shards[-1:], 2 * scale.eval_bytes)
        else:
            corpus = open_corpus(data)
            train, held = _first(corpus, "train", scale.train_bytes), _first(corpus, "val", 2 * scale.eval_bytes)
    known = set(train)
    held = [text for text in dict.fromkeys(held) if text not in known]
    if len(held) < 2 * SUBSET:
        raise UserError(f"--data={data} has {len(held)} documents that are held out: a trial needs more")
    text = series.folder / "text"
    shutil.rmtree(text, ignore_errors=True)
    text.mkdir(mode=0o755)
    write_jsonl(text / "documents.jsonl", [{"text": one} for one in train])
    (text / "documents.jsonl").chmod(0o644)
    sealed = {"validation": held[::SUBSET], "holdout": held[1::SUBSET]}
    for name, documents in sealed.items():
        write_json(series.folder / "sealed" / f"{name}.json", documents)
    tokenizer = Tokenizer.train([pa.array(train, pa.large_string())], scale.vocab_size)
    vocabulary = series.folder / "home/tok_train/default/tokenizer.json"
    content = tokenizer.save(vocabulary)
    for path in [vocabulary, *list(vocabulary.parents)[:3]]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    made = [text / "documents.jsonl", vocabulary, *(series.folder / "sealed" / f"{name}.json" for name in sealed)]
    files = {str(path.relative_to(series.folder)): read_sha256(path) for path in made}
    return {"train_bytes": sum(len(one.encode()) for one in train), "tokenizer": content, "files": files}


def _parquet(paths: Sequence[Path], most: int) -> list[str]:
    import pyarrow.parquet as pq

    return _until((text for path in paths for text in pq.read_table(path)["text"].to_pylist()), most)


def _first(corpus: "Corpus", split: str, most: int) -> list[str]:
    return _until((text for batch in corpus.batches(split) for text in batch.to_pylist() if text), most)


def _until(texts: Any, most: int) -> list[str]:
    """Return the first texts, until they have so many bytes together."""
    found: list[str] = []
    size = 0
    for text in texts:
        if size >= most:
            break
        found.append(text)
        size += len(text.encode())
    return found
