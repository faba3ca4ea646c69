"""The record of a stage, `outcome.json`, which the report card shows. Training imports no report."""

import shlex
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.config import is_off
from nanochat.environment import Texts, bloat, environment, versions
from nanochat.errors import UserError
from nanochat.log import MetricLog, Record, format_value, print0, terminal_table
from nanochat.paths import read_json, read_sha256, stage_dir, write_json
from nanochat.statistics import Metrics

if TYPE_CHECKING:
    from nanochat.config import Config


@dataclass(kw_only=True)
class Outcome:
    """The record that a stage writes, `outcome.json` in the stage's folder."""

    stage: str
    tag: str
    started: str
    timestamp: str = ""  # end of the stage
    command: str
    config: dict[str, Any]  # every field
    card: list[str]  # config fields for the report card
    off: list[str] = field(default_factory=list)  # those of them that did nothing; the card only counts them
    metrics: Metrics = field(default_factory=dict)  # stderr, format, unit may be absent
    # {"title", "columns", "rows"}: a column is [name, format spec], rows hold raw values, None for an empty cell
    tables: list[Record] = field(default_factory=list)
    seconds: float = 0.0  # wall clock, of a resumed run over all its processes
    artifacts: dict[str, str] = field(default_factory=dict)  # file name -> SHA-256
    versions: Texts
    environment: dict[str, Any]
    curves: list[Record] = field(default_factory=list)  # {"title", "x", "y", "series"}: name -> [xs, ys]

    @classmethod
    def begin(cls, stage: str, tag: str, config: "Config") -> "Outcome":
        """Return the record for a stage that starts now."""
        return cls(
            stage=stage,
            tag=tag,
            started=_now(),
            command=shlex.join(["python", *sys.orig_argv[1:]]),  # orig_argv still has -m and the module
            config=asdict(config),
            card=[one.name for one in fields(config) if one.metadata["in_card"]],
            off=[
                one.name for one in fields(config) if one.metadata["in_card"] and is_off(one, getattr(config, one.name))
            ],
            versions=versions(),
            environment=environment() | {"Bloat": bloat()},
        )

    @property
    def ended(self) -> datetime:
        """The end of the stage."""
        return moment(self.timestamp)

    @property
    def folder(self) -> Path:
        """The stage's folder, which gets the record."""
        return stage_dir(self.stage, self.tag)

    def figure(self, name: str) -> Any:
        """Return a metric without its format; UserError if the record has none of this name."""
        if name not in self.metrics:
            raise UserError(f"{self.tag} has no {name}, its record is of an earlier version: run its stage again")
        metric = self.metrics[name]
        return metric["value"] if isinstance(metric, dict) else metric

    def add_artifact(self, path: Path) -> None:
        self.artifacts[path.name] = read_sha256(path)

    def passed(self) -> float:
        """Return the seconds since the stage started, pauses included."""
        return (datetime.fromisoformat(_now()) - datetime.fromisoformat(self.started)).total_seconds()

    def write(self, earlier: float = 0.0) -> None:
        """Stop the clock and write the record to the stage's folder. Call it last.

        earlier: seconds of processes that this one has resumed.
        """
        self.timestamp = _now()
        self.seconds = earlier + self.passed()
        write_json(self.folder / "outcome.json", asdict(self))

    def show(self) -> None:
        """Print the tables and the metrics."""
        print0(*map(terminal_table, self.tables), sep="\n\n")
        for name, value in self.metrics.items():
            print0(f"{name}: {format_value(value)}")

    def finish(self) -> None:
        """Print the tables and the metrics, and write the record."""
        self.show()
        self.write()

    def write_evaluation(self, kind: str, step: int) -> None:
        """Print and write the record of an evaluation, and log its estimates, for a model's step."""
        self.show()
        figures = {name: metric["value"] for name, metric in self.metrics.items() if isinstance(metric, dict)}
        with MetricLog(self.folder, self.config["run"], self.config, tracker=self.config["tracker"]) as log:
            log.write(kind, step, **figures)
        self.write()

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """Return the record in `path`; UserError if it is damaged or was written by another version."""
        try:
            return cls(**read_json(path))
        except (TypeError, ValueError):
            raise UserError(f"{path} is not a record of this version: move it away, or run the stage again") from None


def moment(text: str) -> datetime:
    """Return a moment of a record. Their texts do not sort: they may have unlike offsets from UTC."""
    return datetime.fromisoformat(text).astimezone()  # of an early record without one: this machine's


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")  # with the UTC offset


def read_outcomes(base: Path, tag: str = "") -> list[Outcome]:
    """Return the record for each stage below `base`, of all tags or one."""
    return [Outcome.load(path) for path in sorted(base.glob(f"*/{tag or '*'}/outcome.json"))]


def readable_outcomes(base: Path, stage: str) -> list[Outcome]:
    """Return the records of a stage, of all tags, without those of other versions."""
    found = []
    for path in sorted(base.glob(f"{stage}/*/outcome.json")):
        with suppress(UserError):
            found.append(Outcome.load(path))
    return found
