"""Trials whose runs are made up, for tests of what is asked of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanochat.log import Record
from nanochat.paths import write_json
from nanochat.trial import arena
from nanochat.trial.arena import Killed
from nanochat.trial.decision import Plan
from nanochat.trial.ledger import Ledger
from nanochat.trial.referee import Trial
from nanochat.trial.series import FIXED, Question, Series, pinned
from nanochat.trial.sides import Side, _kept


@dataclass(frozen=True)
class Asked:
    """What a question came to."""

    status: int
    lines: list[str]
    complaint: str

    @property
    def metrics(self) -> dict[str, str]:
        return dict(line.removeprefix("METRIC ").split("=", 1) for line in self.lines if line.startswith("METRIC "))

    @property
    def verdict(self) -> str:
        """The line above the figures."""
        return next(line for line in self.lines if line.startswith(("keep", "discard", "not distinguishable")))


QUESTION = Question("", "HEAD", "", "default", "tiny", "flops", "", Plan(1, 0, 0, 0.001), [], True, False)


def opened(folder: Path, **fixed: str) -> Series:
    """A series without texts."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {**dict.fromkeys(FIXED, ""), "scale": "tiny", "budget": "flops", "secret": "s", **fixed}
    return Series(folder, values, Ledger(folder / "trial.jsonl"))


class Fake:
    """A trial whose runs are made up: a candidate is better by 0.5, and each run takes about 10 seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, budget: str = "flops") -> None:
        self.question = dataclasses.replace(QUESTION, plan=plan)
        self.times = 1.0  # the candidate's seconds, in those of the incumbent
        self.same = 99  # from this run on, the candidate's weights are the same
        self.trained: list[tuple[str, str]] = []  # side and seed
        self.code = {}
        for name in ("incumbent", "candidate"):
            (folder / name / "nanochat").mkdir(parents=True)
            (folder / name / "nanochat/gpt.py").write_text(f"# {name}\n", encoding="utf-8")
            self.code[name] = _kept(folder / name, folder / "code")
        self.series = opened(folder, budget=budget, referee=self.code["incumbent"].name)
        self.series.ledger.add("series", **pinned(self.series.fixed), files={})
        self.killed: set[int] = set()  # runs, by number
        self.rows = ""
        self.drawn: set[str] = set()  # sides whose weights are others each time
        self.memory = 1.0
        for name in ("validation", "holdout"):
            write_json(folder / f"sealed/{name}.json", ["a short text"])
        monkeypatch.setattr(arena, "train", self.train)
        monkeypatch.setattr(arena, "score", self.score)
        monkeypatch.setattr(arena, "weights_hash", self.weights_hash)

    def train(self, side: Side, flags: Sequence[str], home: Path, text: Path, folder: Path, *_: object) -> Record:
        folder.mkdir(parents=True, exist_ok=True)
        self.trained.append((side.name, next(flag for flag in flags if flag.startswith("--seed="))))
        if len(self.trained) in self.killed:
            raise Killed("its run was killed")
        seconds = (10 + 0.1 * (len(self.trained) % 3)) * (self.times if side.name == "candidate" else 1.0)
        found = {"seconds": seconds, "cpu_seconds": 10.0, "processes": 1, "memory": self.memory, "bytes": 10}
        return {**found, "initial": "", "rows": self.rows}

    def score(self, side: Side, *_: object) -> Record:
        bpb = (2.0 if side.name == "candidate" else 2.5) + 0.001 * (len(self.trained) % 4)
        used = {"scoring_cpu_seconds": 1.0, "scoring_processes": 9}
        return {"scoring": 1.0, **used, "bpb": bpb, "sum_error": 0.0, "difference": 0.0}

    def weights_hash(self, folder: Path) -> str:
        count = sum(name == "candidate" for name, _ in self.trained)
        if folder.name.endswith("-again") and self.trained[-1][0] in self.drawn:
            return f"{len(self.trained)}"
        own = folder.name.removesuffix("-again")
        return "same" if count >= self.same and self.trained[-1][0] == "candidate" else own

    def record(self) -> Record:
        """Ask as a new process does."""
        trial = Trial.__new__(Trial)
        trial.series, trial.question, trial.machine = self.series, self.question, "machine"
        trial.incumbent = Side("incumbent", "HEAD", self.code["incumbent"])
        trial.candidate = Side("candidate", "HEAD", self.code["candidate"])
        trial.name, trial.number = "name", 1
        return trial.record()

    def parts(self) -> list[str]:
        return [record["part"] for record in self.series.ledger.of_kind("run")]
