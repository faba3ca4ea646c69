"""A series of trials: its texts, its ledger, and the copy of the code that judges.

A series begins with the first question. The commit of its incumbent is copied, and from then on that copy asks, trains,
scores and writes: whatever command a person runs hands over to it. The folder of a series has

  referee.json        what was fixed: repository, commit, scale, budget, data, and the secret that seeds follow from
  code/HASH/          the referee and the sides
  text/               documents to learn from, which a side sees
  sealed/             validation text and the holdout, which no side sees
  home/               the tokenizer
  runs/KEY/           checkpoints of what was kept
  trial.jsonl         the ledger
"""

import dataclasses
import json
import math
import os
import platform
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.cores import own_cores, processor, usable_cores
from nanochat.environment import ROOT, torch_build
from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record, print0, print_line
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
from nanochat.trial import arena, decision
from nanochat.trial.arena import Failure, Killed, Late, Stopped
from nanochat.trial.decision import Answer, Noise, Part, Plan, Verdict
from nanochat.trial.ledger import GENESIS, Ledger, read, verify
from nanochat.trial.listing import ANSWERS, length_words, list_lines, listed
from nanochat.trial.scorer import Refused
from nanochat.trial.settings import SCALES, BudgetName, ScaleName, TrialScale
from nanochat.trial.sides import (
    Side,
    changed_files,
    check_files,
    check_flags,
    check_incumbent,
    check_unchanged,
    commit_of,
    committed,
    working_tree,
)

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus

ROOT_VARIABLE = "NANOCHAT_TRIAL_ROOT"  # set by whoever hands over: the repository that is asked about
# Of a run, which other work on the machine changes.
TIMES = ("seconds", "cpu_seconds", "scoring", "scoring_cpu_seconds")
METRICS = (*TIMES, "memory", "bytes")  # of a run, beside bits per byte
FIXED = ("root", "commit", "referee", "scale", "budget", "data", "unsafe")  # of referee.json
FIRST_BYTES = 10**8  # of the files of a run, as long as none is known
MORE_SCORING = 20.0  # seconds of processor time beyond the bound
LATE = (3.0, 120.0)  # a scoring may take so many times the incumbent's seconds, and so many more
LARGER = 3.0  # times the bytes of the incumbent's files: a checkpoint that carries something else
AGAIN = "-again"  # end of the key of a run that repeats another one
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


# ---- a trial ----


@contextmanager
def faults_decide_nothing(folder: Path) -> Iterator[None]:
    """Make a UserError of the block's OSErrors: a full disk is a fault of this side, and no candidate is to blame."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror}" if error.errno else str(error)
        raise UserError(f"{what}; nothing is decided by that: mend it and ask again") from None


def run_trial(question: Question) -> int:
    """Answer a question, print the answer, and return the exit status: 0 keep, 10 discard, 11 undecided."""
    sandbox.require(question.unsafe)
    folder = series_folder(question.series)
    with hold_folder(folder, "--series"), faults_decide_nothing(folder):
        series = open_series(folder)
        try:
            record = Trial(series, question, asked_root()).record()
        except Refused as refused:  # a flag that is not the candidate's to set
            asked = {"candidate": question.candidate, "flags": question.flags, "number": 0}
            record = series.ledger.add("trial", name="", **asked, answer="discard", reason=str(refused))
        told = {name: value for name, value in record.items() if name != "previous"}
        _tell(told, answer_lines(told), question.json)
    return STATUS[record["answer"]]


WORDS = {
    "cpu_seconds": "processor time for what it counts as the same work",
    "seconds": "time",
    "cores": "processor time in the same seconds",
    "scoring_cpu_seconds": "processor time to be scored",
    "bytes": "bytes of files",
}
ADVICE = {
    "cpu_seconds": "ask with --budget=seconds, in another series",
    "seconds": "both end by the clock",
    "cores": "it works with more processes",
    "scoring_cpu_seconds": "it does more than to score",
    "bytes": "a checkpoint has weights and states of an optimizer",
}
# Files of the code that decide how much a run trains: a little more passes the bounds on time.
LENGTH = ("nanochat/scaling.py", "nanochat/train.py", "nanochat/run.py", "scripts/base_train.py")
# What follows from a run's seed.
SEEDED = {"weights": "weights at the end", "initial": "first weights", "rows": "first rows of text"}
STATUS = {"keep": 0, "discard": 10, "undecided": 11}


class Trial:
    """A question, while it is being answered."""

    def __init__(self, series: Series, question: Question, root: Path) -> None:
        self.series = series
        self.question = question
        self.machine = machine_name()
        self.incumbent = self._incumbent(root)
        check_incumbent(self.incumbent, self._referee)
        self.candidate = self._candidate(root)
        if self.incumbent.key == self.candidate.key:
            raise UserError("the candidate is the incumbent: change the code, or name another --candidate")
        # A question that was not answered yet goes on under its number.
        words = [self.incumbent.key, self.candidate.key, *map(str, dataclasses.astuple(question.plan))]
        self.name = text_sha256(json.dumps(words))[:16]
        asked = [record["name"] for record in series.ledger.of_kind("asked")]
        if self.name not in asked:
            self._check_flags()
            series.ledger.add("asked", name=self.name, **self._sides(), diff=self.candidate.diff, time=time.time())
            asked.append(self.name)
        self.number = 1 + asked.index(self.name)

    def _check_flags(self) -> None:
        """Raise a UserError for flags that the incumbent's code cannot plan a run by: nothing is spent for that."""
        scale, fixed = self.series.scale, self.series.fixed
        asked = []
        if self.question.flags:  # also at the second depth, where the incumbent would fail at the end
            asked += product([self.incumbent.flags], scale.depths if self.question.plan.deeper else scale.depths[:1])
        if self.question.candidate.strip().startswith("-"):  # it may be kept at the first depth alone
            asked.append((self.candidate.flags, scale.depths[0]))
        for flags, depth in asked:
            words = [f"--depth={depth}", *flags, scale.budget(fixed["budget"], depth)]
            complaint = arena.complaint(self.incumbent.code, words, scale.vocab_size, fixed["unsafe"])
            if complaint:
                raise UserError(complaint)

    @property
    def _referee(self) -> Path:
        return self.series.code / self.series.fixed["referee"]

    def _sides(self) -> Record:
        return {
            name: {"name": side.name, "commit": side.commit, "code": side.code.name, "flags": list(side.flags)}
            for name, side in (("incumbent", self.incumbent), ("candidate", self.candidate))
        }

    def _note(self) -> str:
        """Return what a reader should know: a series is about its first commit and what it kept, at equal work."""
        found = []
        kept = {one["candidate"]["code"] for one in self.series.ledger.of_kind("trial") if one["answer"] == "keep"}
        if self.incumbent.code.name not in {self.series.fixed["referee"], *kept}:
            found.append(
                "the incumbent is neither the code that the series began with nor a candidate that it has kept"
            )
        lengths = [name for name in changed_files(self.incumbent.code, self.candidate.code) if name in LENGTH]
        if lengths:
            names = ", ".join(lengths)
            found.append(
                f"the candidate changes {names}, by which a run's length is counted: see whether it trains longer"
            )
        if self.question.flags:
            found.append(f"both sides have {self.question.flags}")
        found += filter(None, [_again_words(self.series, self.name, "validation")])
        if killed := self._lines("killed"):
            found.append(f"{_count_of(len(killed), 'run')} trained again after a kill")
        if again := self._begun_again():
            found.append(f"{_count_of(len(again), 'run')} begun again")
        different = {line["side"] for line in self._lines("repeated") if not line["same"]}
        if different:
            runs = "runs of both sides" if len(different) == 2 else "a run of the incumbent"
            found.append(f"{runs} ended with other weights when trained again")
        return "; ".join(found)

    def _incumbent(self, root: Path) -> Side:
        commit = commit_of(root, self.question.incumbent)
        return Side(commit[:8], commit, committed(root, commit, self.series.code), self._flags(""))

    def _candidate(self, root: Path) -> Side:
        asked = self.question.candidate.strip()
        if asked.startswith("-"):
            return dataclasses.replace(self.incumbent, name=asked, flags=self._flags(asked))
        if asked:
            commit = commit_of(root, asked)
            return Side(commit[:8], commit, committed(root, commit, self.series.code), self._flags(""))
        code, diff = working_tree(root, self.series.code)
        commit = commit_of(root, "HEAD")
        return Side("the working tree", commit, code, self._flags(""), diff)

    def _flags(self, own: str) -> list[str]:
        """Return the flags of a side: the scale's, those for both, and its own, of which the last counts."""
        flags = [f"{name}={value}" for name, value in self.series.scale.flags.items()]
        found: dict[str, str] = {}
        try:
            both = check_flags(self.question.flags, "--flags")
        except Refused as refused:  # they are nobody's attempt
            raise UserError(f"--flags: {refused}") from None
        for word in [*flags, *both, *check_flags(own, "--candidate")]:
            found[word.partition("=")[0]] = word
        return list(found.values())

    # ---- the answer ----

    def record(self) -> Record:
        """Return the answer's line in the ledger; one that is there already is not asked again."""
        ledger = self.series.ledger
        for record in ledger.of_kind("trial"):
            if record["name"] == self.name:
                return record
        for left in (self.series.folder / "runs").glob(f"*{AGAIN}*"):  # of a referee that was killed
            shutil.rmtree(left, ignore_errors=True)
        before = {"name": self.name, "number": self.number, **self._sides()}
        try:
            check_files(
                self.incumbent,
                self.candidate,
                self._referee,
                [*self.series.documents("validation"), *self.series.documents("holdout")],
            )
            noise = self._noise()
            self._say_length()
            shown = decision.smallest(noise, self.question.plan, self.number)
            self._say(f"the noise is {noise.sd:.4f} bits per byte over seeds: this question shows gains of {shown:.4f}")
            verdict = decision.decide(self.question.plan, self.number, noise, self._pairs, self.series.scale.depths)
            if verdict.answer is Answer.KEEP and self.series.fixed["budget"] != "seconds":
                self._check_repeats()
            found = self._found(verdict)
        except Refused as refused:
            found = {"answer": "discard", "reason": str(refused), "refused": refused.check}
        except Failure as failure:
            found = {"answer": "discard", "reason": str(failure), "failed": True}
        self.series.check()
        for code in (self.incumbent.code, self.candidate.code, self._referee):
            check_unchanged(code)
        if found["answer"] != "keep":  # the holdout is for what is kept
            self._forget_confirming()
        return ledger.add("trial", **before, **found)

    def _forget_confirming(self) -> None:
        for side in (self.incumbent, self.candidate):
            for number in range(self.question.plan.confirming):
                key = self._key(side, Part.CONFIRM, self._seed(Part.CONFIRM, number))
                shutil.rmtree(self.series.folder / "runs" / key, ignore_errors=True)

    def _found(self, verdict: Verdict) -> Record:
        plan = self.question.plan
        noise = self._noise()
        shown = decision.smallest(noise, plan, self.number)
        reason = verdict.reason
        if verdict.answer is Answer.UNDECIDED:
            reason += self._advice(verdict.aim, noise)
        return {
            "answer": verdict.answer.value,
            "reason": reason,
            "holds": verdict.holds,
            "note": self._note(),
            "contained": not (self.series.fixed["unsafe"] and sandbox.missing()),  # it is used wherever it works
            "gain": verdict.gain.mean,
            "interval": verdict.gain.half() if verdict.gain.stderr else 0.0,
            "pairs": verdict.gain.pairs,
            "p": verdict.p,
            "level": verdict.level,
            "part": verdict.part,
            "second": _second_record(verdict),
            "noise": noise._asdict(),
            "smallest": shown,
            "in_turns": self._measured[0] is not Part.SCREEN,  # the runs that the metrics are of
            "metrics": {name: self._difference(name) for name in self.question.metrics},
            "confirmed": self._confirmed(verdict),
        }

    def _advice(self, aim: float, noise: Noise) -> str:
        """Return how many more pairs would show a gain, as far as pairs are advised."""
        plan = self.question.plan
        if plan.pairs >= decision.MOST_PAIRS:
            return f"{plan.pairs} pairs have not shown {aim:.4f}"
        wanted = decision.pairs_for(aim, noise, plan, self.number + 1)
        if wanted is None:
            return f"{decision.MOST_PAIRS} pairs would not show {aim:.4f}"
        repeated = self.series.fixed["budget"] != "seconds"
        asked = f"--pairs={wanted} asks for them, up to {plan.with_pairs(wanted).runs + repeated} runs"
        return f"{wanted - plan.pairs} more pairs would show {aim:.4f}: {asked}"

    def _difference(self, metric: str) -> Record:
        """Return what both sides took, and the change in percent with its interval.

        The incumbent's runs may be those of the noise floor, of another hour: a change of times would be the machine's.
        """
        part, count = self._measured
        sides = []
        for side in (self.incumbent, self.candidate):
            runs = [self._there(side, part, number) for number in range(count)]
            sides.append([run[metric] for run in runs if run])
        found = {"incumbent": statistics.median(sides[0]), "candidate": statistics.median(sides[1])}
        comparable = part is not Part.SCREEN or metric not in TIMES
        if comparable and count > 1 and min(map(min, sides)) > 0:  # a run says itself how much memory it took
            times = decision.gain_of([(math.log(other), math.log(one)) for one, other in zip(*sides, strict=True)])
            found |= {"change": 100 * math.expm1(times.mean), "interval": 100 * math.expm1(times.half())}
        return found

    def _confirmed(self, verdict: Verdict) -> list[list[str]]:
        """Return the runs [incumbent's, candidate's] that have confirmed a keep: the holdout is for them."""
        if verdict.answer is not Answer.KEEP:
            return []
        return [
            [
                self._key(side, Part.CONFIRM, self._seed(Part.CONFIRM, number))
                for side in (self.incumbent, self.candidate)
            ]
            for number in range(self.question.plan.confirming)
        ]

    # ---- runs ----

    def _noise(self) -> Noise:
        """Return the noise floor; runs that are missing are trained."""
        runs = [self._run(self.incumbent, Part.SCREEN, number, floor=True) for number in range(self.series.scale.floor)]
        noise = decision.noise_of([run["bpb"] for run in runs])
        if not noise.sd:
            raise UserError("the incumbent's runs have the same figure for every seed: it does not use the seed")
        return noise

    def _pairs(self, part: Part, count: int) -> list[decision.Pair]:
        """Return the scores of pairs as `_draw` does; NoPairs where the second depth takes too much, or fails."""
        try:
            return self._draw(part, count)
        except (Failure, Refused) as error:
            cheats = isinstance(error, Refused) and error.check != "budget"
            if part is not Part.DEPTH or cheats:
                raise
            raise decision.NoPairs(str(error)) from None

    def _draw(self, part: Part, pairs: int) -> list[decision.Pair]:
        """Train pairs, and return their scores; raise Refused if they are no fair pairs."""
        if part is Part.SCREEN:
            part = self._first
        scores = []
        found: dict[str, list[Record]] = {"incumbent": [], "candidate": []}
        for number in range(pairs):
            sides = [("incumbent", self.incumbent), ("candidate", self.candidate)]
            for name, side in sides if number % 2 == 0 else reversed(sides):  # a slow hour hits both
                found[name].append(self._run(side, part, number))
            one, other = found["incumbent"][-1], found["candidate"][-1]
            scores.append((one["bpb"], other["bpb"]))
            self._check_pairs(found, part, pairs)
            gain = one["bpb"] - other["bpb"]
            self._say(f"{part.value} pair {number + 1} of {pairs}: gain {gain:+.4f} bits per byte")
        return scores

    def _check_pairs(self, found: dict[str, list[Record]], part: Part, pairs: int) -> None:
        """Raise Refused if the candidate does not use its seed, or has more than the incumbent to work with.

        pairs: of the whole part.
        """
        for name, what in SEEDED.items():
            values = [run[name] for run in found["candidate"] if run[name]]
            if len(set(values)) < len(values):
                raise Refused("seed", f"two seeds give the candidate the same {what}: its seed is chosen, not given")
        if self.series.fixed["budget"] == "seconds":  # both sides of every part are trained in turns
            floor = [run["seconds"] for run in self._incumbents(Part.SCREEN, self.series.scale.floor)]
            one, other = ([run["seconds"] for run in runs] for runs in found.values())
            times = decision.longer(one, other, floor)
            if times:
                raise _over_budget("seconds", times)
            times = 0.0
            if len(found["candidate"]) >= self._least_pairs(pairs):  # other work takes cores from a run
                times = _more_cores(self._incumbents(Part.SCREEN, self.series.scale.floor), found)
            if times:
                raise _over_budget("cores", times)
        else:  # threads that wait use processor time up too, and other work on the machine changes seconds
            self._check_work(found, part)
        if len(found["candidate"]) >= self._least_pairs(pairs):
            times = _scored_longer(found["incumbent"], found["candidate"])
            if times and part is Part.SCREEN:  # another hour, when the machine was less busy
                times = _scored_longer(self._incumbents(Part.AGAIN, len(found["candidate"])), found["candidate"])
            if times:
                raise _over_budget("scoring_cpu_seconds", times)
        one, other = (statistics.median(run["bytes"] for run in runs) for runs in found.values())
        if other > LARGER * one:
            raise _over_budget("bytes", other / one)

    def _least_pairs(self, pairs: int) -> int:
        """Return how many pairs of a part may refuse a candidate: one may have met a slow minute.

        Where nothing is confirmed there may be no other.
        """
        return 2 if self.question.plan.confirming else min(pairs, 2)

    def _check_work(self, found: dict[str, list[Record]], part: Part) -> None:
        """Raise Refused if the candidate has taken more processor time than chance explains."""
        floor = []
        if part is not Part.SCREEN:
            floor = [run["cpu_seconds"] for run in self._incumbents(Part.SCREEN, self.series.scale.floor)]
        times = self._more_work(found["incumbent"], found["candidate"], floor)
        if times and part is Part.SCREEN:  # the incumbent's runs may be of another hour, when the machine was faster
            times = self._more_work(self._incumbents(Part.AGAIN, len(found["candidate"])), found["candidate"], floor)
        if times:
            raise _over_budget("cpu_seconds", times)

    def _incumbents(self, part: Part, count: int) -> list[Record]:
        return [self._run(self.incumbent, part, number) for number in range(count)]

    @staticmethod
    def _more_work(incumbent: Sequence[Record], candidate: Sequence[Record], floor: Sequence[float]) -> float:
        one = [run["cpu_seconds"] for run in incumbent]
        return decision.longer(one, work_of(candidate, incumbent), floor)

    def _say(self, text: str) -> None:
        """Tell how far it is; with --json the answer stands alone on stdout."""
        print_line(f"trial {self.number}: {text}", file=sys.stderr if self.question.json else sys.stdout)

    def _say_length(self) -> None:
        """Tell how long the question may take."""
        fixed = self.series.fixed
        floor = self._incumbents(Part.SCREEN, self.series.scale.floor)
        self._say(length_words(self.question.plan, fixed["scale"], fixed["budget"], floor))

    @property
    def _first(self) -> Part:
        """Return the part whose runs are those of the first part.

        By the clock the noise floor's runs of the incumbent are no pairs: a slow hour would hit the candidate alone.
        """
        return Part.BESIDE if self.series.fixed["budget"] == "seconds" else Part.SCREEN

    @property
    def _measured(self) -> tuple[Part, int]:
        """Return the part whose runs say what both sides take, and its pairs: the confirmation, if there was one."""
        plan = self.question.plan
        if plan.confirming and self._there(self.candidate, Part.CONFIRM, plan.confirming - 1):
            return Part.CONFIRM, plan.confirming
        return self._first, plan.pairs

    def _depth(self, part: Part) -> int:
        return self.series.scale.depths[part is Part.DEPTH]

    def _seed(self, part: Part, number: int) -> int:
        """Return a pair's seed. Those of the first part are the noise floor's, for every trial; the others are new."""
        if part is Part.SCREEN:
            return self.series.seed("floor", number)
        return self.series.seed(part.value, self.name, number)

    def _key(self, side: Side, part: Part, seed: int) -> str:
        depth = self._depth(part)
        return text_sha256(json.dumps([side.key, depth, seed, self.machine]))[:16]

    def _there(self, side: Side, part: Part, number: int) -> Record | None:
        key = self._key(side, part, self._seed(part, number))
        return next((run for run in self.series.ledger.of_kind("run") if run["key"] == key), None)

    def _run(self, side: Side, part: Part, number: int, floor: bool = False) -> Record:
        """Return a run of a side, from the ledger if it is there."""
        there = self._there(side, part, number)
        if there:
            return there
        series = self.series
        key = self._key(side, part, self._seed(part, number))
        depth = self._depth(part)
        what = "noise floor" if floor else part.value
        who = "incumbent" if side is self.incumbent else "candidate"
        self._say(f"{what} {number + 1}: {who}, depth {depth}")
        flags = self._words(side, part, number)
        folder = series.folder / "runs" / key
        shutil.rmtree(folder, ignore_errors=True)
        self._check_space()
        about: Record = {"question": self.name, "part": part.value, "number": number, "key": key, "side": side.key}
        self._fail_again(side, key)
        try:
            series.ledger.add("begun", **about)
            measured = self._trained_or_again(side, flags, folder, about)

            def patience(late: bool) -> float:
                return self._patience(side, part, number, late)

            measured |= _scored(series, side, key, "validation", patience, self.name, part=part.value, number=number)
            measured["weights"] = arena.weights_hash(folder)
        except (Failure, Refused) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._add_crash(about, error)
            if side is self.incumbent:
                raise UserError(f"a run of the incumbent failed, so nothing can be compared: {error}") from None
            raise
        if part is not Part.CONFIRM:  # the holdout is for what was confirmed
            shutil.rmtree(folder)
        return series.ledger.add(
            "run", key=key, side=side.key, part=part.value, number=number, depth=depth, machine=self.machine, **measured
        )

    def _add_crash(self, about: Record, error: Failure | Refused) -> None:
        check = error.check if isinstance(error, Refused) else ""
        reason = error.reason if isinstance(error, Refused) else str(error)
        self.series.ledger.add("crash", **about, check=check, reason=reason)

    def _fail_again(self, side: Side, key: str) -> None:
        """Raise what a candidate's run has ended with, if the referee was killed before it had said so."""
        crash = next((line for line in self._lines("crash") if line["key"] == key), None)
        if crash and side is self.candidate:
            raise Refused(crash["check"], crash["reason"]) if crash["check"] else Failure(crash["reason"])

    def _trained_or_again(self, side: Side, flags: Sequence[str], folder: Path, about: Record) -> Record:
        """Return what training has measured. A run that was killed is trained again: of each side once in a question.

        The machine may have killed it for other work, but whoever kills itself may do so by what it has seen. about:
        the run, for the ledger.
        """
        try:
            return self._trained(side, flags, folder)
        except Killed as killed:
            # One that repeats is that which was killed before, if there is one.
            before = [line for line in self._lines("killed") if line["side"] == side.key]
            if before and not about["key"].endswith(AGAIN):
                raise Failure(f"{killed}, and another one was trained again before") from None
            self.series.ledger.add("killed", **about)
        try:
            return self._trained(side, flags, folder)
        except Killed as killed:
            raise Failure(f"{killed}, twice") from None

    def _lines(self, kind: str) -> list[Record]:
        """Return the lines of a kind that are of this question."""
        return [line for line in self.series.ledger.of_kind(kind) if line["question"] == self.name]

    def _begun_again(self) -> list[str]:
        """Return the keys of this question's runs that were begun more than once: the trial was stopped in them."""
        counts = Counter(line["key"] for line in self._lines("begun"))
        return [key for key, count in counts.items() if count > 1]

    def _check_repeats(self) -> None:
        """Raise Refused if a run of the candidate ends with other weights, trained again with the same seed.

        What is drawn anew each time can be drawn until it is good: by a run that kills itself, or whoever stops the
        trial. Runs that end by the clock are never the same, and where the incumbent's are not, nothing is compared.
        """
        part = Part.CONFIRM if self.question.plan.confirming else self._first
        count = self.question.plan.confirming or self.question.plan.pairs
        doubted = {*self._begun_again(), *(line["key"] for line in self._lines("killed"))}

        def chosen(side: Side) -> tuple[int, bool]:
            """Return the number of a run, one of those that were begun again if there are any, and whether it is."""
            keys = [self._key(side, part, self._seed(part, number)) for number in range(count)]
            numbers = [number for number, key in enumerate(keys) if key in doubted]
            among = numbers or [*range(count)]
            return among[self.series.seed("repeat", self.name) % len(among)], bool(numbers)

        number, _ = chosen(self.candidate)
        own, is_doubted = chosen(self.incumbent)
        if is_doubted:  # whoever asks has made the incumbent, too
            self._repeats(self.incumbent, part, own)
        if not self._repeats(self.candidate, part, number) and self._repeats(self.incumbent, part, number):
            raise Refused(
                "seed",
                "a run, trained again with its seed, ends with other weights: it draws what is not given, or adds up in"
                " no fixed order",
            )

    def _repeats(self, side: Side, part: Part, number: int) -> bool:
        """Return True if a run of a side, trained again, ends with the same weights."""
        first = self._run(side, part, number)
        there = next((line for line in self._lines("repeated") if line["of"] == first["key"]), None)
        if there:
            return there["same"]
        key = first["key"] + AGAIN
        about: Record = {"question": self.name, "part": part.value, "number": number, "key": key, "side": side.key}
        self._fail_again(side, key)
        who = "incumbent" if side is self.incumbent else "candidate"
        self._say(f"{part.value} {number + 1} again, for the same weights: {who}, depth {self._depth(part)}")
        folder = self.series.folder / "runs" / key
        self._check_space()
        self.series.ledger.add("begun", **about)
        try:
            measured = self._trained_or_again(side, self._words(side, part, number), folder, about)
            weights = arena.weights_hash(folder)
        except (Failure, Refused) as error:
            self._add_crash(about, error)
            if side is self.incumbent:
                raise UserError(f"a run of the incumbent failed, so nothing can be compared: {error}") from None
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        is_same = weights == first["weights"]
        self.series.ledger.add("repeated", **about, of=first["key"], same=is_same, seconds=measured["seconds"])
        return is_same

    def _words(self, side: Side, part: Part, number: int) -> list[str]:
        """Return the flags of a run."""
        depth = self._depth(part)
        budget = self.series.scale.budget(self.series.fixed["budget"], depth)
        words = [f"--depth={depth}", *side.flags, budget, f"--seed={self._seed(part, number)}"]
        never = ["eval-every", "sample-every", "core-metric-every", "save-every"]
        return [*words, *(f"--{name}=-1" for name in never), "--no-compile"]

    def _patience(self, side: Side, part: Part, number: int, late: bool) -> float:
        """Return the seconds that a scoring may take: a candidate's are bounded by the incumbent's at this depth.

        late: it took longer before. So did the incumbent, perhaps, if the machine is busier now: it is scored first.
        """
        if side is self.incumbent:
            return arena.SCORING
        if late:
            self._run(self.incumbent, Part.AGAIN if part is Part.SCREEN else part, number)
        which = {"side": self.incumbent.key, "depth": self._depth(part), "machine": self.machine}
        runs = [run for run in self.series.ledger.of_kind("run") if which.items() <= run.items()]
        return patience_of([run["scoring"] for run in runs])

    def _trained(self, side: Side, flags: Sequence[str], folder: Path) -> Record:
        series = self.series
        home, text = series.folder / "home", series.folder / "text"
        return arena.train(side, flags, home, text, folder, series.scale.patience, series.fixed["unsafe"])

    def _check_space(self) -> None:
        """Raise an OSError if the files of a run, as large as a candidate's may be, would not fit."""
        from nanochat.checkpoint import check_free_space

        known = [run["bytes"] for run in self.series.ledger.of_kind("run")]
        check_free_space(self.series.folder, int(LARGER * max(known, default=FIRST_BYTES)))


# ---- the holdout ----


def open_holdout(name: str, as_json: bool) -> None:
    """Score what a series has kept on text that decided nothing, once, and print it."""
    folder = series_folder(name)
    with hold_folder(folder, "--series"), faults_decide_nothing(folder):
        series = open_series(folder)
        kept = [
            record for record in series.ledger.of_kind("trial") if record["answer"] == "keep" and record["confirmed"]
        ]
        if not kept:
            raise UserError(f"the series {name} has kept nothing on confirming seeds: the holdout stays sealed")
        sandbox.require(series.fixed["unsafe"])
        opened = series.ledger.of_kind("holdout")
        if not opened:
            if not series.ledger.of_kind("holdout-opened"):
                series.ledger.add("holdout-opened", trials=[record["number"] for record in kept])
            numbers = series.ledger.of_kind("holdout-opened")[0]["trials"]  # what was kept when it was first opened
            found = _all_scored(series, [record for record in kept if record["number"] in numbers])
            opened = [series.ledger.add("holdout", trials=found)]
        told = {
            "series": name,
            "trials": opened[0]["trials"],
            "later": len(kept) - len(opened[0]["trials"]),
            "hash": opened[0]["hash"],
            "answer": _all_held([one["answer"] for one in opened[0]["trials"]]),
        }
        _tell(told, holdout_lines(told), as_json)


def _tell(told: Record, lines: Sequence[str], as_json: bool) -> None:
    """Print an answer as JSON or for people."""
    if as_json:
        print0(json.dumps(told, indent=2))
    else:
        print0(*lines, sep="\n")


def _all_held(answers: Sequence[str]) -> str:
    """Return the worst of the answers, "held" if all gains were seen on the holdout."""
    return next(answer for answer in ("lost", "failed", "undecided", "held") if answer in answers)


def _all_scored(series: Series, kept: Sequence[Record]) -> list[Record]:
    """Return what the holdout says of each keep, a line of the ledger for each; those that are there stay.

    A fault of the machine decides nothing, and stops no other: a UserError once the others have their lines.
    """
    there = {line["trial"]["number"]: line["trial"] for line in series.ledger.of_kind("holdout-trial")}
    faults = []
    for record in kept:
        number = record["number"]
        if number in there:
            continue
        try:
            found = _held(series, record)
        except UserError as fault:
            faults.append(f"trial {number} could not be scored on the holdout, and nothing is decided by that: {fault}")
        else:
            there[number] = series.ledger.add("holdout-trial", trial=found)["trial"]
    if faults:
        raise UserError(f"{'; '.join(faults)}; mend it and ask again: what has its score keeps it")
    return [there[record["number"]] for record in kept]


def _held(series: Series, record: Record) -> Record:
    """Return whether a gain held; a candidate whose model cannot be scored has failed."""
    about = {
        "number": record["number"],
        "candidate": record["candidate"]["name"],
        "validation": record["gain"],
    }
    try:
        return about | _on_holdout(series, record)
    except (Failure, Refused) as error:
        return about | {"answer": "failed", "reason": str(error)}


def _on_holdout(series: Series, record: Record) -> Record:
    """Return how large a gain is on the holdout; Failure or Refused by fault of the candidate, else a UserError."""
    sides = [
        Side(one["name"], one["commit"], series.code / one["code"], one["flags"])
        for one in (record["incumbent"], record["candidate"])
    ]
    weights = {run["key"]: run["weights"] for run in series.ledger.of_kind("run")}
    for side in sides:
        check_unchanged(side.code)
    pairs = []
    seconds = []  # of the incumbent, which is scored first
    for number, keys in enumerate(record["confirmed"]):
        about = {"question": record["name"], "part": "holdout", "number": number}
        for key in keys:
            _check_weights(series.folder / "runs" / key, weights[key])
        try:
            one = _scored(series, sides[0], keys[0], "holdout", lambda _: arena.SCORING, **about)
        except (Failure, Refused) as error:
            raise UserError(f"the incumbent's model {keys[0]} was not scored: {error}") from None
        try:
            seconds.append(one["scoring"])
            other = _scored(series, sides[1], keys[1], "holdout", lambda _: patience_of(seconds), **about)
        except Stopped as error:  # as by other work on the machine
            raise UserError(f"the candidate's model {keys[1]} was not scored: {error}") from None
        pairs.append((one["bpb"], other["bpb"]))
    gain = decision.gain_of(pairs)
    answer = "undecided"
    if gain.p_better() <= decision.WORSE:
        answer = "held"
    elif gain.p_worse() <= decision.WORSE:
        answer = "lost"
    return {
        "gain": gain.mean,
        "interval": gain.half() if gain.stderr else 0.0,
        "pairs": gain.pairs,
        "p": gain.p_better(),
        "again": _again_words(series, record["name"], "holdout"),
        "answer": answer,
    }


def _check_weights(place: Path, content: str) -> None:
    """Raise a UserError if a run's folder has not the weights that the run has left."""
    try:
        found = arena.weights_hash(place)
    except Failure:
        raise UserError(f"{place} has no weights any more, which its run has left") from None
    if found != content:
        raise UserError(f"{place} has other weights than its run left: nothing can be scored")


def verify_series(name: str, head: str, as_json: bool) -> None:
    """Check the ledger of a series, and print what it has; a UserError if it was changed.

    head: the hash that an answer has named, which has to be in it; empty: none.
    """
    path = series_folder(name) / "trial.jsonl"
    if not path.exists():
        raise UserError(f"there is no series {name} below {base_dir() / 'trial'}")
    count = verify(path, head)
    last = list(read(path))[-1]["hash"] if count else GENESIS
    told = {"series": name, "lines": count, "hash": last, "answer": "unchanged"}
    words = f"{path}: {count} lines, each with the hash of the one before; the last is {last}"
    metrics = {"lines": count, "ledger": last, "answer": "unchanged"}
    _tell(told, [words, *metric_lines(metrics)], as_json)


def list_series(name: str, as_json: bool) -> None:
    """Print what a series has asked, and what it has taken."""
    path = series_folder(name) / "trial.jsonl"
    told = listed(name, list(read(path)) if path.exists() else [])
    counts = {key: told[key] for key in ("kept", "runs")}
    metrics = {"trials": len(told["trials"]), **counts, "seconds": f"{told['seconds']:.0f}", "answer": "listed"}
    _tell(told, [*list_lines(told), *metric_lines(metrics)], as_json)


def machine_name() -> str:
    """Return what decides a run's rounding and speed: the processor with what it can, the cores for it, and torch."""
    software = torch_build()["__version__"]
    cores = f"{len(own_cores())} {usable_cores()} cores"  # without a quota, which the sandbox does not see, and with it
    return f"{platform.machine()} {text_sha256(processor())[:12]} {cores} torch {software}"


def work_of(runs: Sequence[Record], beside: Sequence[Record], kind: str = "") -> list[float]:
    """Return the processor time of a side's runs, with what processes may hide that the runs beside it do not have.

    kind: "scoring_" for that of scoring.
    """
    seconds, processes = f"{kind}cpu_seconds", f"{kind}processes"
    usual = statistics.median(run[processes] for run in beside)
    return [run[seconds] + sandbox.UNSEEN * max(0, run[processes] - usual) for run in runs]


def _more_cores(floor: Sequence[Record], found: dict[str, list[Record]]) -> float:
    """Return how many times the incumbent's processor time a candidate has in the same seconds; 0.0 if in bounds.

    floor: runs of the noise floor. The incumbent's largest counts, of which other work has taken least. Threads that
    use the cores better are no second process.
    """
    beside = [*floor, *found["incumbent"]]
    most = max(run["cpu_seconds"] for run in beside)
    other = statistics.median_low(work_of(found["candidate"], found["incumbent"]))
    processes = statistics.median_low(run["processes"] for run in found["candidate"])
    if processes <= max(run["processes"] for run in beside):
        return 0.0
    return other / most if other > decision.SLOWER[1] * most else 0.0


def _scored_longer(incumbent: Sequence[Record], candidate: Sequence[Record]) -> float:
    """Return how many times the incumbent's processor time it takes to score the candidate; 0.0 if that is in bounds.

    Of two pairs both have to be beyond them. Loading counts, which takes seconds even for a small model.
    """
    one = statistics.median(run["scoring_cpu_seconds"] for run in incumbent)
    other = statistics.median_low(work_of(candidate, incumbent, "scoring_"))
    return other / one if other > decision.SLOWER[1] * one + MORE_SCORING else 0.0


def patience_of(seconds: Sequence[float]) -> float:
    """Return the seconds that a candidate's scoring may take, after those of the incumbent.

    What a process sees of the text, it can tell the next one by how long it takes: such words should be few.
    """
    times, more = LATE
    return min(arena.SCORING, times * max(seconds) + more)


def _scored(
    series: Series, side: Side, key: str, text: str, patience: Callable[[bool], float], question: str, **about: object
) -> Record:
    """Return what a run's model scores on a sealed text.

    What the machine may have stopped is scored again, once for each side of a question: whoever stops by itself may do
    so by what it has read. Both tries count. patience: the seconds that it may take, asked before each try, whether it
    was late before. question: the trial's name. about: the run, for the ledger.
    """
    unsafe = series.fixed["unsafe"]
    given = side, series.folder / "home", series.folder / "runs" / key, series.documents(text), unsafe
    try:
        return arena.score(*given, patience(False))
    except Stopped as error:
        if any(line["side"] == side.key for line in _again(series, question, text)):
            raise type(error)(f"{error}, and another one was scored again before") from None
        cpu_seconds, late = error.cpu_seconds, isinstance(error, Late)
        which = {"question": question, "text": text, "key": key, "side": side.key, **about}
        series.ledger.add("again", **which, reason=str(error), cpu_seconds=cpu_seconds)
    try:
        found = arena.score(*given, patience(late))
    except Stopped as error:
        raise type(error)(f"{error}, twice") from None
    return found | {"scoring_cpu_seconds": found["scoring_cpu_seconds"] + cpu_seconds}


def _again(series: Series, question: str, text: str) -> list[Record]:
    """Return the lines of the scorings on a text that a question has tried again."""
    return [line for line in series.ledger.of_kind("again") if (line["question"], line["text"]) == (question, text)]


def _again_words(series: Series, question: str, text: str) -> str:
    """Return how many scorings a question has tried again, for its answer; "" for none."""
    count = len(_again(series, question, text))
    return f"{_count_of(count, 'scoring')} tried again" if count else ""


def _count_of(count: int, name: str) -> str:
    return f"1 {name} was" if count == 1 else f"{count} {name}s were"


def _over_budget(name: str, times: float) -> Refused:
    return Refused("budget", f"it has {times:.2f} times the incumbent's {WORDS[name]}: {ADVICE[name]}")


def _second_record(verdict: Verdict) -> Record | None:
    """Return what the second depth has shown; None if it was not asked."""
    gain = verdict.second
    if gain is None:
        return {"answer": "failed", "reason": verdict.failed} if verdict.failed else None
    answer = "undecided"
    if gain.p_better() <= decision.WORSE:
        answer = "better"
    elif gain.p_worse() <= decision.WORSE:
        answer = "worse"
    return {"gain": gain.mean, "interval": gain.half(), "pairs": gain.pairs, "answer": answer}


# ---- words ----


def answer_lines(record: Record) -> list[str]:
    """Return the answer for people; the last lines are `METRIC name=value`, for programs."""
    lines = ["", f"{ANSWERS[record['answer']]}: {record['reason']}"]
    metrics: dict[str, object] = {}
    if "gain" in record:
        then = "goes on" if record["part"] == "filter" else "is kept"
        lines.append(
            f"gain: {record['gain']:+.4f} ± {record['interval']:.4f} bits per byte over {record['pairs']} pairs, "
            f"p = {record['p']:.2g}; it {then} at {record['level']:.2g}"
        )
        if record["note"]:
            lines.append(f"note: {record['note']}")
        if not record["contained"]:
            lines.append("note: both sides ran without the sandbox, and could reach what judges them")
        if record["holds"]:
            lines.append(f"holds: {record['holds']}")
        if record["second"] and "gain" in record["second"]:
            second = record["second"]
            lines.append(f"second depth: {second['gain']:+.4f} ± {second['interval']:.4f} over {second['pairs']} pairs")
        noise = record["noise"]
        lines.append(
            f"noise: {noise['sd']:.4f} over {noise['freedom'] + 1} seeds; this question shows {record['smallest']:.4f}"
        )
        for name, found in record["metrics"].items():
            change = "; the incumbent ran earlier" if name in TIMES and not record["in_turns"] else ""
            if "change" in found:
                change = f", {found['change']:+.1f} ± {found['interval']:.1f} %"
            lines.append(f"{name}: {found['incumbent']:,.4g} incumbent, {found['candidate']:,.4g} candidate{change}")
            metrics |= {f"{name}_{kind}": f"{value:.6g}" for kind, value in found.items()}
        metrics |= {
            "confirmed": "yes" if record["confirmed"] else "no",
            "contained": "yes" if record["contained"] else "no",
            "note": "yes" if record["note"] else "no",
            "second_depth": record["second"]["answer"] if record["second"] else "none",
        }
        metrics |= {"gain_bpb": f"{record['gain']:.6f}", "interval_bpb": f"{record['interval']:.6f}"}
        metrics |= {"p": f"{record['p']:.6g}", "level": f"{record['level']:.6g}", "part": record["part"]}
        metrics |= {"pairs": record["pairs"], "smallest_bpb": f"{record['smallest']:.6f}"}
    metrics |= {"number": record["number"], "ledger": record["hash"], "answer": record["answer"]}
    return [*lines, *metric_lines(metrics)]


def metric_lines(metrics: Record) -> list[str]:
    """Return figures for programs; the last one is the answer."""
    return [f"METRIC {name}={value}" for name, value in metrics.items()]


HELD = {"held": "it held", "lost": "it is a loss there", "undecided": "neither a gain nor a loss is shown there"}


def holdout_lines(told: Record) -> list[str]:
    """Return what the holdout has shown, in the form of `answer_lines`."""
    lines = []
    metrics: dict[str, object] = {}
    for one in told["trials"]:
        about: Record = {}
        said = f"trial {one['number']}: {one['candidate']}: {one['validation']:+.4f} on validation text, "
        if one["answer"] == "failed":
            lines.append(f"{said}and it cannot be scored on the holdout: {one['reason']}")
        else:
            lines.append(
                f"{said}{one['gain']:+.4f} ± {one['interval']:.4f} on the holdout over {one['pairs']} pairs, "
                f"p = {one['p']:.2g}: {HELD[one['answer']]}" + (f"; {one['again']}" if one["again"] else "")
            )
            about = {
                "gain_bpb": f"{one['gain']:.6f}",
                "interval_bpb": f"{one['interval']:.6f}",
                "p": f"{one['p']:.6g}",
                "pairs": one["pairs"],
            }
        about["answer"] = one["answer"]
        metrics |= {f"trial_{one['number']}_{name}": value for name, value in about.items()}
    if told["later"]:
        lines.append(f"{told['later']} later keeps have no holdout: it is opened once, at the end of a series")
    metrics |= {"trials": len(told["trials"]), "later": told["later"], "ledger": told["hash"]}
    return [*lines, *metric_lines({**metrics, "answer": told["answer"]})]
