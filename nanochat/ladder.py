"""Ladders: runs of base models at several depths and seeds with one recipe, as they are recorded and compared.

A finished ladder leaves in its folder `ladder/TAG` an outcome for the report card, and `curve.log`, a line for each run
in the columns of the public nanochat: `model model_tag=… depth=… base.eflops=… base.val_bpb=…`, values quoted as in a
shell. Other lines of such a file are read as remarks. Columns that only this project writes are `base.seed`,
`base.val_bpb_stderr`, and those that begin with `ladder.`: what two ladders need to have in common.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of
from nanochat.multiplier import LEVEL, ROUNDING, Multiplier, Rung, Spread, can_pair, in_words, multipliers, spread_of
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, newest_manifest, read_json, saved_steps, stage_dir, write_text
from nanochat.statistics import measured

if TYPE_CHECKING:
    from nanochat.config import Config

STAGE = "ladder"
CURVE_FILE = "curve.log"
RECORD = "model"  # the first word of a line about a run
RUNS = "Runs"  # title of the table of runs; bench.scaling writes one with these names of columns too
COLUMNS = "Run | Depth | Seed | N:,d | Tokens:,d | FLOPs:.4e | Bits per byte:.4f | ±:.4f | Seconds:,.1f"
ScaledSize = Callable[[dict[str, int]], int]  # numbers of parameters by kind -> N
RUNG_COLUMNS = "Depth | Runs | FLOPs:.3e | Bits per byte:.4f | Spread over seeds:.4f"


@dataclass(frozen=True)
class Terms:
    """What ladders need to have in common. Empty: not known."""

    tokenizer: str = ""  # hash; bits per byte of unlike tokenizers compare, their runs are no pairs
    validation: str = ""  # the text that bits per byte were measured on
    order: str = ""  # what decides the order of the training text, but for the seed


NO_TERMS = Terms()


@dataclass(frozen=True)
class Ladder:
    """A finished ladder."""

    name: str
    rungs: Sequence[Rung]  # by FLOPs
    terms: Terms = NO_TERMS


def ladder_of(name: str, runs: Iterable[tuple[int, int | None, float, float]], terms: Terms = NO_TERMS) -> Ladder:
    """Return the ladder of some runs, each with depth, seed, FLOPs and bits per byte; UserError if they are none."""
    found: dict[int, list[tuple[int | None, float, float]]] = {}
    for depth, seed, flops, bpb in runs:
        if not (0 < bpb < math.inf and 0 < flops < math.inf):
            raise UserError(f"{name}: depth {depth} has {bpb:g} bits per byte after {flops:g} FLOPs, so no curve")
        found.setdefault(depth, []).append((seed, flops, bpb))
    rungs = []
    for depth, own in found.items():
        seeds, flops, bpb = zip(*own, strict=True)
        mean = math.exp(math.fsum(map(math.log, flops)) / len(flops))  # runs that a clock has ended differ a little
        rungs.append(Rung(depth, mean, bpb, seeds))
    rungs.sort(key=lambda rung: rung.flops)
    for one, other in pairwise(rungs):
        if other.flops < 1.001 * one.flops:
            raise UserError(f"{name}: depths {one.depth} and {other.depth} have the same FLOPs, so no curve over them")
    return Ladder(name, rungs, terms)


# ---- a run's line in curve.log ----


def format_line(values: Mapping[str, Any]) -> str:
    """Return a line about a run; what is None is left out."""
    words = (f"{name}={shlex.quote(str(value))}" for name, value in values.items() if value is not None)
    return " ".join([RECORD, *words])


def parse_line(line: str) -> dict[str, str] | None:
    """Return the columns of a line about a run; None for another line."""
    try:
        first, *words = shlex.split(line)
    except ValueError:  # a quotation mark in prose, or an empty line
        return None
    if first != RECORD or not words or not all("=" in word for word in words):
        return None
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def read_curve(path: Path, name: str) -> Ladder:
    """Return the ladder in a file with the columns of the public nanochat's curve.log."""
    runs = []
    terms = []
    by_tag: dict[str, tuple[int, int | None, float, float]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        values = parse_line(line)
        if values is None:
            continue
        try:
            seed = int(values["base.seed"]) if "base.seed" in values else None
            run = (int(values["depth"]), seed, 1e18 * float(values["base.eflops"]), float(values["base.val_bpb"]))
        except KeyError as error:
            raise UserError(f"{path}:{number}: a line about a run has no {error.args[0]}") from None
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        tag = values.get("model_tag", "")
        if tag and tag in by_tag:  # a file that was appended to has a run twice, which counts once
            if by_tag[tag] != run:
                raise UserError(
                    f"{path}:{number}: another line about {tag} has other figures: leave one of them, or give the runs"
                    " tags of their own"
                )
            continue
        by_tag[tag] = run
        runs.append(run)
        terms.append(Terms(**{one.name: values.get(f"ladder.{one.name}", "") for one in fields(Terms)}))
    if not runs:
        raise UserError(
            f"{path} has no line about a run: `{RECORD} model_tag=d12 depth=12 base.eflops=… base.val_bpb=…`"
        )
    return ladder_of(name, runs, _common_terms(name, terms))


def _common_terms(name: str, terms: Sequence[Terms]) -> Terms:
    """Return what all runs of a ladder have in common; a UserError if bits per byte are those of several texts."""
    found = {one.name: list(dict.fromkeys(getattr(run, one.name) for run in terms)) for one in fields(Terms)}
    texts = [text for text in found["validation"] if text]
    if len(texts) > 1:
        raise UserError(f"{name}: its runs were measured on {texts[0]} and on {texts[1]}, so there is no common curve")
    return Terms(**{field: values[0] if len(values) == 1 else "" for field, values in found.items()})


# ---- runs that have finished ----


@dataclass(frozen=True)
class LadderRun:
    """A finished run, as a row of the table."""

    tag: str
    depth: int
    seed: int
    n: int  # parameters in matrices and head, see nanochat/scaling.py
    tokens: int
    flops: float  # counted during training
    bpb: float  # bits per byte on validation text
    stderr: float
    seconds: float | None  # of training; None: its checkpoints are gone


def _manifest(tag: str) -> Record:
    """Return the manifest of a run's last checkpoint; empty if somebody has deleted them."""
    folder = stage_dir("base_train", tag)
    return newest_manifest(folder) if saved_steps(folder) else {}


def _value(outcome: Outcome, name: str) -> Any:
    """Return a metric without its format; None if it is a text, as it is where nothing was measured."""
    metric = outcome.metrics.get(name)
    value = metric["value"] if isinstance(metric, dict) else metric
    return None if isinstance(value, str) else value


def counts_of(outcome: Outcome) -> dict[str, int]:
    """Return the parameters of a finished base model that its size counts, by kind."""
    counts = {kind: outcome.figure(f"Number of parameters, {kind}") for kind in ("matrices", "head")}
    return counts | {"embed": _value(outcome, "Number of parameters, embed") or 0}


def _run_of(outcome: Outcome, scaled_size: ScaledSize) -> LadderRun:
    metric = outcome.metrics.get("Final validation bpb")
    if not isinstance(metric, dict):
        raise UserError(f"{outcome.tag} has no bits per byte on validation text: train it without --eval-every=-1")
    manifest = _manifest(outcome.tag)
    return LadderRun(
        tag=outcome.tag,
        depth=outcome.config["depth"],
        seed=outcome.config["seed"],
        n=scaled_size(counts_of(outcome)),
        tokens=outcome.figure("Tokens seen"),
        flops=outcome.figure("Total training flops"),
        bpb=metric["value"],
        stderr=metric["stderr"],
        seconds=manifest["loop"]["seconds"] if manifest else None,
    )


def _columns(outcome: Outcome, run: LadderRun, terms: Terms) -> Record:
    """Return the columns of a run in curve.log."""
    batch = outcome.figure("Total batch size")
    memory = _value(outcome, "Peak memory usage")
    budget = outcome.config["target_flops"]
    manifest = _manifest(run.tag)
    own = {
        "model_dim": manifest["model"].get("width") if manifest else None,
        "num_params": outcome.figure("Number of parameters"),
        "num_scaling_params": run.n,
        "num_iterations": run.tokens // batch,
        "total_batch_size": batch,
        "tokens_trained": run.tokens,
        "eflops": run.flops / 1e18,
        "param_data_ratio": round(run.tokens / run.n, 2),
        "train_time_sec": None if run.seconds is None else round(run.seconds, 1),
        "peak_vram_mib": None if memory is None else round(memory),
        "target_flops": budget if budget > 0 else None,
        "val_bpb": run.bpb,
        "min_val_bpb": _value(outcome, "Minimum validation bpb"),
        "core": _value(outcome, "CORE metric estimate"),
        "seed": run.seed,
        "val_bpb_stderr": run.stderr,
    }
    columns = {"model_tag": run.tag, "depth": run.depth} | {f"base.{name}": value for name, value in own.items()}
    return columns | {f"{STAGE}.{one.name}": getattr(terms, one.name) for one in fields(terms)}


def _terms_of(outcome: Outcome, tokenizer_tag: str) -> Terms:
    """Return what another ladder needs to have in common with a run's."""
    tokenizer = Outcome.load(stage_dir("tok_train", tokenizer_tag) / "outcome.json")
    config = outcome.config
    size = f"{config['eval_bytes']:,} bytes"
    if config["eval_bytes"] < 0:  # see runtime.VALIDATION_BYTES
        on_gpu = outcome.environment["Hardware"]["GPUs"] != "none" and config["device_type"] in ("auto", "cuda")
        size = f"as many bytes as by default on a {'GPU' if on_gpu else 'CPU'}"
    return Terms(
        tokenizer=tokenizer.artifacts.get("tokenizer.json", "")[:12],
        validation=f"{outcome.metrics['Validation text']}, {size}",
        order=f"{outcome.metrics['Data']}, {config['lanes']} lanes, rows of {config['max_seq_len']} tokens",
    )


def leave_ladder(config: "Config", tag: str, run_tags: Sequence[str], show: bool, scaled_size: ScaledSize) -> Ladder:
    """Write the outcome and curve.log of a ladder from the outcomes of its runs, which have finished.

    tag: of the ladder, and of its tokenizer. show: print the tables. scaled_size: that of nanochat.scaling.
    """
    record = Outcome.begin(STAGE, tag, config)
    outcomes = [Outcome.load(stage_dir("base_train", run) / "outcome.json") for run in run_tags]
    runs = [_run_of(outcome, scaled_size) for outcome in outcomes]
    terms_of_runs = [_terms_of(outcome, tag) for outcome in outcomes]
    terms = _common_terms(tag, terms_of_runs)
    lines = [format_line(_columns(*found)) for found in zip(outcomes, runs, terms_of_runs, strict=True)]
    ladder = ladder_of(tag, [(run.depth, run.seed, run.flops, run.bpb) for run in runs], terms)
    rows = sorted(map(astuple, runs), key=lambda row: row[1:3])
    record.tables = [table_of(RUNS, COLUMNS, rows), _rung_table(ladder.rungs)]
    points = [[math.log10(rung.flops) for rung in ladder.rungs], [math.exp(rung.y) for rung in ladder.rungs]]
    record.curves = [
        {"title": "Bits per byte against compute", "x": "log10 flops", "y": "bits per byte", "series": {tag: points}}
    ]
    spread = spread_of(ladder.rungs, [], paired=False)
    code = list(dict.fromkeys(outcome.environment["Git Information"]["Commit"] for outcome in outcomes))
    record.metrics = {
        "Tokenizer": terms.tokenizer,
        "Validation text": terms.validation,
        "Order of the text": terms.order,
        "Code": ", ".join(code),
        "Relative spread over seeds": measured(
            100 * math.sqrt(spread.single) if spread.freedom else None, spec=".2f", unit="%"
        ),
    }
    write_text(record.folder / CURVE_FILE, "".join(f"{line}\n" for line in lines))
    record.add_artifact(record.folder / CURVE_FILE)
    if show:
        record.show()
        if len(code) > 1:
            print0(f"ladder: runs of several commits, {', '.join(code)}: code that differs needs a --tag of its own")
    record.write()
    return ladder


def _rung_table(rungs: Sequence[Rung]) -> Record:
    rows = []
    for rung in rungs:
        spread = spread_of([rung], [], paired=False)
        mean = math.exp(rung.y)
        rows.append([rung.depth, len(rung.bpb), rung.flops, mean, mean * math.sqrt(spread.single)])
    rows = [[None if cell != cell else cell for cell in row] for row in rows]  # NaN: one run has no spread
    return table_of("The curve", RUNG_COLUMNS, rows)


# ---- finding ladders ----


def ladder_of_record(stage: Mapping[str, Any], name: str) -> Ladder:
    """Return the ladder in a stage's record, as outcome.json and report.json have it; a miniseries has one seed."""
    [table] = [table for table in stage["tables"] if table["title"] == RUNS]
    names = [column for column, _ in table["columns"]]
    runs = []
    for row in table["rows"]:
        cell = dict(zip(names, row, strict=True))
        runs.append((cell["Depth"], cell.get("Seed"), cell["FLOPs"], cell["Bits per byte"]))
    metrics = stage["metrics"]
    known = {"tokenizer": "Tokenizer", "validation": "Validation text", "order": "Order of the text"}
    return ladder_of(name, runs, Terms(**{field: metrics.get(title, "") for field, title in known.items()}))


def find_ladder(name: str) -> Ladder:
    """Return the ladder that somebody names: a tag of a ladder or a miniseries, a curve.log or its folder."""
    path = Path(name).expanduser()
    if path.is_dir() and (path / CURVE_FILE).is_file():
        return read_curve(path / CURVE_FILE, path.resolve().name)
    if path.is_file():
        return read_curve(path, path.stem if path.name != CURVE_FILE else path.resolve().parent.name)
    if "/" in name:
        raise UserError(f"there is no ladder at {name}: name a {CURVE_FILE}, its folder, or the --tag of a ladder")
    found = stage_dir(STAGE, name) / CURVE_FILE
    if found.exists():
        return read_curve(found, name)
    series = stage_dir("scaling", name) / "outcome.json"
    if series.exists() and read_json(series)["config"].get("kind") == "miniseries":
        return ladder_of_record(read_json(series), name)
    there = sorted(path.parent.name for path in base_dir().glob(f"{STAGE}/*/{CURVE_FILE}"))
    raise UserError(f"there is no ladder {name} in {base_dir()}; there are: {', '.join(there) or 'none'}")


# ---- comparing ladders ----


@dataclass(frozen=True)
class Comparison:
    """The compute multipliers of a candidate over a baseline."""

    baseline: Ladder
    candidate: Ladder
    level: float  # of the intervals
    found: Sequence[Multiplier]
    spread: Spread
    notes: Sequence[str]  # what a reader has to know

    @property
    def words(self) -> str:
        return in_words(self.found, self.baseline.name, self.candidate.name)

    def table(self) -> Record:
        """Return the table of multipliers, with the verdict below it."""
        one, other = self.baseline.name, self.candidate.name
        columns = [
            "Depth",
            "Bits per byte:.4f",
            f"FLOPs of {other}:.3e",
            f"FLOPs of {one} for that:.3e",
            "Multiplier",
            f"{100 * self.level:g} % interval",
            f"{other} is",
        ]
        rows = []
        for rung, got in zip(self.candidate.rungs, self.found, strict=True):
            needed = None if got.value is None else got.value * rung.flops
            rows.append([got.depth, math.exp(rung.y), rung.flops, needed, *multiplier_cells(got), got.verdict])
        title = f"Compute multiplier of {other} over {one}"
        return table_of(title, " | ".join(columns), rows, note=" ".join([self.words, *self.notes]))

    def record(self) -> Record:
        """Return the comparison for programs; what is not known, or has no limit, is None."""
        rows = []
        for got in self.found:
            low = got.low or None
            high = None if got.high is None or math.isinf(got.high) else got.high
            rows.append(
                {
                    "depth": got.depth,
                    "multiplier": got.value,
                    "low": low,
                    "high": high,
                    "extrapolated": got.is_extrapolated,
                    "verdict": got.verdict,
                }
            )
        return {
            "baseline": self.baseline.name,
            "candidate": self.candidate.name,
            "level": self.level,
            "paired": self.spread.is_paired,
            "multipliers": rows,
            "verdict": self.words,
            "notes": list(self.notes),
        }


def multiplier_cells(got: Multiplier) -> list[str]:
    """Return a multiplier and its interval as text. Beyond the depths of the baseline a question mark follows."""

    def text(value: float) -> str:
        low, high = got.measured
        if value == 0 or math.isinf(value):
            return "?"
        return f"{value:.3f}" if low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING) else f"{value:.3f}?"

    value = "?" if got.value is None else text(got.value)
    if got.low is None or got.high is None:
        return [value, "-"]
    return [value, f"{text(got.low)} to {text(got.high)}"]


def compare_ladders(baseline: Ladder, candidate: Ladder, level: float = LEVEL) -> Comparison:
    """Return the comparison of two ladders; UserError if they cannot be compared."""
    ladders = (baseline, candidate)
    for ladder in ladders:
        if len(ladder.rungs) == 1:
            raise UserError(f"{ladder.name} has one depth alone, {ladder.rungs[0].depth}: a curve takes two or more")
    depths = [{rung.depth for rung in ladder.rungs} for ladder in ladders]
    if not depths[0] & depths[1]:
        lists = [", ".join(map(str, sorted(own))) for own in depths]
        raise UserError(f"{baseline.name} and {candidate.name} have no depth in common: {lists[0]} against {lists[1]}")
    one, other = (ladder.terms for ladder in ladders)
    if one.validation and other.validation and one.validation != other.validation:
        raise UserError(
            f"bits per byte of {baseline.name} and {candidate.name} are of different validation text, so they do not"
            f" compare: {one.validation} against {other.validation}"
        )
    same_text = bool(one.order) and (one.order, one.tokenizer) == (other.order, other.tokenizer)
    paired = same_text and can_pair(baseline.rungs, candidate.rungs)
    spread = spread_of(baseline.rungs, candidate.rungs, paired)
    found = multipliers(baseline.rungs, candidate.rungs, level, paired)
    return Comparison(baseline, candidate, level, found, spread, _notes(ladders, spread))


def _spreads(rungs: Sequence[Rung]) -> list[float]:
    """Return the relative spread over seeds of each depth that has several."""
    depths = dict.fromkeys(rung.depth for rung in rungs)
    spreads = [spread_of([rung for rung in rungs if rung.depth == depth], [], paired=False) for depth in depths]
    return [math.sqrt(spread.single) for spread in spreads if spread.freedom]


def _notes(ladders: tuple[Ladder, Ladder], spread: Spread) -> list[str]:
    notes = []
    single = [ladder.name for ladder in ladders if all(len(rung.bpb) == 1 for rung in ladder.rungs)]
    if len(single) == 2:
        notes.append("Each depth of both ladders has one run: there is no interval.")
    elif single:
        notes.append(f"Each depth of {single[0]} has one run: the spread over seeds is that of the other ladder.")
    if spread.freedom:
        how = "paired by seed" if spread.is_paired else "not paired"
        spreads = _spreads([*ladders[0].rungs, *ladders[1].rungs])
        notes.append(
            f"Runs are {how}; one relative spread over seeds for all depths, {spread.freedom} degrees of freedom"
            f" (by depth it is {100 * min(spreads):.2f} to {100 * max(spreads):.2f} %)."
        )
    one, other = (ladder.terms.tokenizer for ladder in ladders)
    if one and other and one != other:
        notes.append("The tokenizers differ: bits per byte compare all the same, losses per token do not.")
    if not all(ladder.terms.validation for ladder in ladders):
        notes.append("Whether both were validated on the same text is not known.")
    return notes
