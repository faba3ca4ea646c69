"""Compare recursion with its compute: runs of six arms on the same batches, refits of exits, and a verdict.

A large refinement from the first exit to the last proves little: the loss weighs the first exit least, so it may merely
be trained badly. So the first exit gets a head of its own, trained until validation stops falling; and other models
spend the same compute in another way. The refitted head reads more text than the model did, so the last exit is
refitted too, for a comparison on equal terms.
"""

import json
import statistics
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from nanochat.checkpoint import Checkpoint, manifest_hash, newest
from nanochat.data.corpus import Corpus
from nanochat.dataloader import TextLoader, corpus_of
from nanochat.errors import UserError
from nanochat.evals.bpb import read_text, text_bpb
from nanochat.log import MetricLog, Record, duration, metric_curve, print0, read_metrics, table_of
from nanochat.models import build_model, config_of, tokenizer_of
from nanochat.objectives import next_token
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.param_groups import build_groups, group_rates
from nanochat.paths import stage_dir, text_sha256
from nanochat.runtime import Runtime
from nanochat.scaling import flops_per_token, rate_scale
from nanochat.settings import OptimizerSettings
from nanochat.start import batch_of
from nanochat.statistics import Metrics, interval, measured
from nanochat.train import LoopSettings, State, new_loop
from tracks.recursion.alarms import LEAST_REFINEMENT, in_order, refinement, validated_exits
from tracks.recursion.depth import MOST_EXITS, DepthResult, depth_figures, depth_table, measure_depth, two_texts
from tracks.recursion.model import RecursiveGPT
from tracks.recursion.refits import Refit, refit_file, save_refit, saved_refit
from tracks.recursion.settings import OWN_FIELDS, PRESET_FIELDS, RecursionSettings
from tracks.recursion.shapes import BPB, SHAPE_SEED, SHAPES, TOLERANCE, ShapeName
from tracks.recursion.train import Config

if TYPE_CHECKING:
    from nanochat.gpt import GPT

ARMS = {
    "R": "recursion",
    "D": "recursion, each update scaled by applications^-1/2",
    "P": "same parameters, no loop",
    "F": "same FLOPs per token, no loop, the best of three shapes",
    "W": "same parameters, no loop, same seconds",
    "L": "as many applications, one state, loss at the end alone",
}
# Metrics of base training beside BPB, and what its checkpoint says: seconds, and how often a layer runs in training.
FLOPS = "Number of FLOPs per token"
PARAMETERS = "Number of parameters"
SECONDS = "Seconds of training"
APPLICATIONS = "Applications of a layer per token"
# Settings in which an arm may differ from R. W reads more rows, or fewer, and is told R's number of shards, as a run by
# the clock would take another one; that the text is the same is compared by its hash.
OPTIMIZED_ALIKE = {"warmup_steps", "grad_clip"}  # a preset has them, but they are no part of recursion
OF_RECURSION = {*PRESET_FIELDS, *OWN_FIELDS, "recursion"} - OPTIMIZED_ALIKE
FREE_IN_ARM = {*OF_RECURSION, "depth", "model", "num_iterations", "target_seconds"}
FREE = dict.fromkeys(ARMS, FREE_IN_ARM) | {
    "D": {"residual_power"},
    "F": {*FREE_IN_ARM, "width"},
    "W": {*FREE_IN_ARM, "rows", "num_shards"},
}
# metric -> arms that have to equal R in it: FLOPs and seconds, which cannot be the same, within TOLERANCE. An arm that
# trains for some seconds ends with the step that passes them: the seconds of that step may come on top. L has R's FLOPs
# in its layers alone, as it has one head for all of R's.
EQUAL = {PARAMETERS: ("D", "P", "W", "L"), APPLICATIONS: ("D", "L"), FLOPS: ("D", "F"), SECONDS: ("W",)}
EXACTLY = (PARAMETERS, APPLICATIONS)
# refits.py keeps refits, which follow from these.
REFIT_STEPS = 50  # between validations
REFIT_RATES = (1.0, 0.25, 0.0625)  # factors for the learning rate, each until validation stops falling
LEAST_GAIN = 0.001  # of the bits per byte: less counts as no fall


# ---- finished arms ----


@dataclass(frozen=True)
class ArmRun:
    """A finished base model of an arm."""

    outcome: Outcome
    checkpoint: Checkpoint
    records: list[Record]  # of the metric log

    @classmethod
    def read(cls, tag: str) -> "ArmRun":
        folder = stage_dir("base_train", tag)
        if not (folder / "outcome.json").exists():
            raise UserError(f"the run {tag} has not finished: train it first, as python -m tracks.recursion.run does")
        outcome = Outcome.load(folder / "outcome.json")
        checkpoint = newest(folder)
        assert checkpoint is not None  # a finished run has one
        manifest = checkpoint.manifest
        outcome.metrics[SECONDS] = manifest["loop"]["seconds"]
        outcome.metrics[APPLICATIONS] = applications(manifest["model"], manifest["config"])
        return cls(outcome, checkpoint, read_metrics(folder / "metrics.jsonl"))

    @property
    def manifest(self) -> Record:
        return self.checkpoint.manifest

    @property
    def exits(self) -> list[float]:
        """Bits per byte at each exit, in the last validation."""
        return validated_exits(self.records)[-1]

    @property
    def last_step_seconds(self) -> float:
        return [record["train/dt"] for record in self.records if record["kind"] == "train"][-1]

    @property
    def settings(self) -> Record:
        """Flags, what decides the order of the rows (hash of the text, tokenizer, lanes, length), their number.

        And the precision that --dtype=auto has found: a series may have gone on on another machine.
        """
        source = self.manifest["source"]
        return self.manifest["config"] | source["setting"] | {"rows": source["rows"], "precision": self.precision}

    @property
    def precision(self) -> str:
        return self.manifest.get("dtype", "")

    def require_equal(self, other: "ArmRun", free: Container[str]) -> None:
        """Raise a UserError if this run differs from another one in its settings or batches, unless that is free."""
        # A flag that is newer than the other run had its default.
        others = {one.name: one.default for one in fields(Config)} | other.settings
        for name, value in self.settings.items():
            if name not in free and value != others.get(name):
                found = f"{self.outcome.tag} has {name} = {value}, and {other.outcome.tag} {others.get(name)}"
                raise UserError(f"{found}: train one of them again")


def applications(model: Record, settings: Record) -> float:
    """Return how often a layer runs for a token in training, in the mean over the run.

    model: the record of a model. settings: of its run, as without a curriculum if they are older than that.
    """
    if "supervision" not in model:
        return model.get("sweeps", 1)
    curriculum = settings.get("curriculum", "")
    shape = {name: model[name] for name in ("supervision", "passes", "loops")}
    sweeps = RecursionSettings(**shape, curriculum=curriculum).sweeps
    return sweeps if sweeps % 1 else int(sweeps)


def read_arms(tag: str, seed: int) -> dict[str, ArmRun]:
    """Return the arms of a seed; a UserError says which one is not what the comparison needs."""
    arms = {arm: ArmRun.read(f"{tag}-{arm}-{seed}") for arm in ARMS}
    recursion = arms["R"]
    if recursion.manifest["config"]["seed"] != seed:
        raise UserError(f"{recursion.outcome.tag} was not trained with --seed={seed}: train it again")
    if not validated_exits(recursion.records):
        raise UserError(f"{recursion.outcome.tag} has no validation: train it again, with --eval-every")
    for arm, run in arms.items():
        run.require_equal(recursion, FREE[arm])
    for name, equal in EQUAL.items():
        other = recursion.outcome.figure(name)
        for arm in equal:
            own = arms[arm].outcome.figure(name)
            most = 0 if name in EXACTLY else TOLERANCE * other
            above = arms[arm].last_step_seconds if name == SECONDS else 0
            if not -most <= own - other <= most + above:
                raise UserError(f"{name}: arm {arm} has {own:,}, and R {other:,}: train one of them again")
    return arms


def read_seeds(tag: str, count: int) -> list[dict[str, ArmRun]]:
    """Return the arms of the seeds 1 to `count`, whose settings are the same."""
    seeds = [read_arms(tag, seed) for seed in range(1, count + 1)]
    for arms in seeds:  # the other arms have the settings of their R
        arms["R"].require_equal(seeds[0]["R"], {"seed"})
    return seeds


def read_shapes(tag: str, seeds: Sequence[Mapping[str, ArmRun]], names: str) -> dict[ShapeName, ArmRun]:
    """Return the runs that F's shape was chosen by; a UserError if F has another shape.

    names: of the shapes, with commas between them, none for a series without: runs of an older plan may lie beside.
    """
    asked = names.split(",") if names else []
    unknown = [name for name in asked if name not in SHAPES]
    if unknown:
        raise UserError(f"--shapes={names} has to be names of shapes: {', '.join(SHAPES)}")
    shapes = {shape: ArmRun.read(f"{tag}-F-{shape}-{SHAPE_SEED}") for shape in SHAPES if shape in asked}
    if shapes:
        best = shapes[best_shape(shapes)]
        for arms in seeds:
            arms["F"].require_equal(best, {"seed"})
    return shapes


def best_shape(shapes: Mapping[ShapeName, ArmRun]) -> ShapeName:
    """Return the shape with the fewest bits per byte on validation text."""
    return min(shapes, key=lambda shape: shapes[shape].outcome.figure(BPB))


# ---- refinement ----


def model_of_exit(exits: int, checkpoint: Checkpoint, runtime: Runtime) -> "GPT":
    """Return a model that ends at an exit of a recursive one, from 1; only its head, which is its own, is trained."""
    shape = config_of(checkpoint.manifest)
    model = build_model(replace(shape, tie_embeddings=False), runtime, weights=0, row_length=shape.max_seq_len)
    tensors = checkpoint.model_tensors()
    # A tied head is the embedding, which has to stay as it is.
    tensors.setdefault("head.weight", tensors["embed.weight"].clone())
    model.load_state_dict(tensors)
    assert isinstance(model, RecursiveGPT)
    model.steps = exits
    model.requires_grad_(False).head.requires_grad_(True)
    return model


@contextmanager
def opened_refit(
    exits: int, run: ArmRun, corpus: Corpus, runtime: Runtime, log: MetricLog
) -> Iterator[tuple[float, Callable[[float], float]]]:
    """Yield the bits per byte at an exit of a run, from 1, and a function that trains a head for it for a round.

    A round has REFIT_STEPS steps on the text that comes after that of the run. The function gets a factor of the
    learning rate, and returns the bits per byte after the round.
    """
    manifest = run.manifest
    tokenizer = tokenizer_of(run.checkpoint)
    config = manifest["config"]
    rows = manifest["loop"]["device_batch"]
    batch = batch_of(manifest)
    length = config["max_seq_len"]
    size = config["eval_bytes"]
    text = read_text(corpus.batches("val"), tokenizer, runtime.validation_bytes if size < 0 else size)
    source = TextLoader(
        corpus,
        tokenizer,
        batch // length,
        length,
        device=runtime.device,
        seed=config["seed"],
        lanes=config["lanes"],
    )
    source.load_state_dict(manifest["source"])
    model = model_of_exit(exits, run.checkpoint, runtime)
    rates = group_rates(OptimizerSettings(), model.config.width, rate_scale(batch), matrix_decay=0.0)
    [head] = [group for group in build_groups(model, rates) if group.name == "unembedding"]
    optimizer = Optimizer([head])
    settings = LoopSettings(device_batch=rows, flops_per_token=flops_per_token(model, length))
    state = State()

    def measure() -> float:
        return text_bpb(model, text, length, rows, runtime).value

    def train_round(factor: float) -> float:
        head.lr = head.initial_lr * factor
        until = replace(settings, steps=state.step + REFIT_STEPS)
        loop = new_loop(model, optimizer, source, next_token, runtime, log, until, state)
        loop.train([], lambda state: None, [])
        found = measure()
        print0(f"refit: step {state.step}, {found:.4f} bits per byte at exit {exits - 1}")
        return found

    before = measure()
    with source:
        yield before, train_round


def refit(exits: int, run: ArmRun, corpus: Corpus, runtime: Runtime, log: MetricLog) -> tuple[float, list[int]]:
    """Train a head for an exit of a run, from 1, at each of the rates until validation stops falling.

    Returns the lowest bits per byte, and the rounds at each rate.
    """
    rounds = []
    with opened_refit(exits, run, corpus, runtime, log) as (lowest, train_round):
        for factor in REFIT_RATES:
            count = 0
            falls = True
            while falls:
                count += 1
                found = train_round(factor)
                falls = found < (1 - LEAST_GAIN) * lowest
                lowest = min(lowest, found)
            rounds.append(count)
    return lowest, rounds


def refit_for_as_long(
    exits: int, run: ArmRun, corpus: Corpus, runtime: Runtime, log: MetricLog, rounds: Sequence[int]
) -> float:
    """Train a head for an exit of a run, from 1, for so many rounds at each of the rates; lowest bits per byte."""
    with opened_refit(exits, run, corpus, runtime, log) as (lowest, train_round):
        for factor, count in zip(REFIT_RATES, rounds, strict=True):
            for _ in range(count):
                lowest = min(lowest, train_round(factor))
    return lowest


def refit_exits(run: ArmRun, runtime: Runtime, log: MetricLog) -> tuple[float, float, int]:
    """Refit the first exit of a run, and the last one for as long; returns the bits per byte of both, and the steps."""
    corpus = corpus_of(run.manifest, name=run.outcome.tag)
    first, rounds = refit(1, run, corpus, runtime, log)
    last = refit_for_as_long(len(run.exits), run, corpus, runtime, log, rounds)
    return first, last, REFIT_STEPS * sum(rounds)


def depth_of(run: ArmRun, runtime: Runtime) -> DepthResult | None:
    """Choose a run's number of exits on its validation text, and score it on what follows; None without two rows."""
    config = run.manifest["config"]
    size = runtime.validation_bytes if config["eval_bytes"] < 0 else config["eval_bytes"]
    row = config["max_seq_len"]
    validation, test = two_texts(corpus_of(run.manifest, name=run.outcome.tag), tokenizer_of(run.checkpoint), size, row)
    if test is None:
        print0(
            f"depth: {run.outcome.tag} has less than two rows of {row:,} tokens for a test, in its validation text"
            f" beyond {size:,} bytes, so no number of exits is chosen"
        )
        return None
    model = build_model(config_of(run.manifest), runtime, run.checkpoint)
    assert isinstance(model, RecursiveGPT)
    most = max(MOST_EXITS, model.config.supervision)
    return measure_depth(model.eval(), validation, test, most, run.manifest["loop"]["device_batch"], runtime)


def refit_basis(run: ArmRun, runtime: Runtime) -> Record:
    """Return what a refit follows from: the checkpoint, which the hash of its manifest stands for, and settings."""
    return {
        "checkpoint": manifest_hash(run.manifest),
        "device": runtime.device.type,
        "dtype": runtime.dtype_name,
        "steps of a round": REFIT_STEPS,
        "rates": list(REFIT_RATES),
        "least gain": LEAST_GAIN,
        "most exits": MOST_EXITS,
    }


def refit_seed(tag: str, seed: int, run: ArmRun, runtime: Runtime) -> Refit:
    """Return the refit of a seed's R, and its number of exits; made, and written, unless it was made before."""
    basis = refit_basis(run, runtime)
    path = refit_file(tag, seed)
    saved = saved_refit(path, basis)
    if saved is not None:
        print0(f"refit: {run.outcome.tag} was refitted before, {saved.steps:,} steps of each head")
        return saved
    print0(f"refit: {run.outcome.tag}, first and last exit")
    start = time.monotonic()
    with MetricLog(stage_dir("recursion_eval", tag), name=f"refit-{seed}") as log:
        log.resume(-1)  # what a stopped attempt has logged does not count
        first, last, steps = refit_exits(run, runtime, log)
    found = Refit(first, last, steps, depth_of(run, runtime), time.monotonic() - start)
    save_refit(path, basis, found)
    return found


@dataclass(frozen=True)
class SeedResult:
    """The arms of a seed, compared."""

    arms: dict[str, ArmRun]
    first: float  # bits per byte of R's first exit with a head of its own
    last: float  # of the last exit
    steps: int  # that each of the heads was trained
    depth: DepthResult | None = None  # of R; None: no text was left for it

    @property
    def batches(self) -> str:
        """A hash of what decides the batches of R, D, P, F and L: W has more of them."""
        source = self.arms["R"].manifest["source"]
        return text_sha256(json.dumps([source["setting"], source["rows"]], sort_keys=True))[:12]

    @property
    def refinements(self) -> tuple[float, float, float]:
        """The refinement of R as it is, with the first exit refitted, and with both exits refitted."""
        exits = self.arms["R"].exits
        return refinement(exits), refinement([self.first, exits[-1]]), refinement([self.first, self.last])

    def gain(self, arm: str) -> float:
        """Return the bits per byte of an arm minus those of R."""
        return self.arms[arm].outcome.figure(BPB) - self.arms["R"].outcome.figure(BPB)


# ---- the verdict ----


def verdict(own: Sequence[float], both: Sequence[float], gains: Mapping[str, Sequence[float]]) -> str:
    """Return the verdict, by the 95 % intervals over seeds.

    own: the refinement of the model as it is, for each seed. both: with the first and the last exit refitted, whose
    heads have read as much text: a first exit that alone was refitted has read more than the last one. gains: arm ->
    the arm's bits per byte minus those of R.
    """
    if len(own) < 2:
        return "no verdict: one seed"
    beats_exit = interval(both).is_positive
    if beats_exit and interval(gains["P"]).is_positive:
        return "better than its compute" if interval(gains["F"]).is_positive else "depth only"
    return "none" if beats_exit or statistics.fmean(own) < LEAST_REFINEMENT else "a poor first exit"


# ---- the report ----


def _mean(values: Sequence[float | str]) -> float | None:
    """Return the mean; None if a run has no figure: one that was too short has no speed."""
    numbers = [value for value in values if not isinstance(value, str)]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None


def tables(results: Sequence[SeedResult], shapes: Mapping[ShapeName, ArmRun] = MappingProxyType({})) -> list[Record]:
    """Return the tables: exits of R; cost and loss of each arm, and its difference to R; shapes of F; more exits of R.

    shapes: the runs that F's shape was chosen by.
    """
    exits = zip(*(result.arms["R"].exits for result in results), strict=True)
    rows = [[i, *interval(bits)] for i, bits in enumerate(exits)]
    found = [table_of("Exits of R on validation text, ± 95 % over seeds", "Exit | Bits per byte:.4f | ±:.4f", rows)]
    columns = (
        "Arm | Layers | Width | Minus R:+.4f | ±:.4f | Bits per byte:.4f | Seconds:,.0f | Parameters:,.0f"
        " | FLOPs per token:,.0f | Tokens:,.0f | Tokens/s:,.0f | FLOPs:.2e | Model"
    )
    names = (BPB, SECONDS, PARAMETERS, FLOPS, "Tokens seen", "Tokens per second", "Total training flops")
    rows = []
    for arm, description in ARMS.items():
        runs = [result.arms[arm] for result in results]
        gain = [None, None] if arm == "R" else interval([result.gain(arm) for result in results])
        means = (_mean([run.outcome.figure(name) for run in runs]) for name in names)
        config = runs[0].outcome.config
        rows.append([arm, config["depth"], config["width"], *gain, *means, description])
    found.append(table_of("Arms, means over seeds; differences to R ± 95 %", columns, rows))
    if shapes:
        found.append(shape_table(shapes))
    if depths := depths_of(results):
        found.append(depth_table(depths))
    return found


def shape_table(shapes: Mapping[ShapeName, ArmRun]) -> Record:
    """Return the table of the shapes that F could have had."""
    best = best_shape(shapes)
    rows = []
    for shape, run in shapes.items():
        config = run.outcome.config
        figures = (run.outcome.figure(name) for name in (BPB, PARAMETERS, FLOPS))
        rows.append(
            [shape, config["depth"], config["width"], *figures, "yes" if shape == best else "no", SHAPES[shape]]
        )
    columns = "Shape | Layers | Width | Bits per byte:.4f | Parameters:,.0f | FLOPs per token:,.0f | Chosen | Width is"
    note = "The arms are compared on the same validation text, so the choice favours F."
    return table_of(f"Shapes of F, chosen on validation text with seed {SHAPE_SEED}", columns, rows, note)


def depths_of(results: Sequence[SeedResult]) -> list[DepthResult]:
    """Return the test-time depth of R for each seed; nothing if a seed has none."""
    found = [result.depth for result in results if result.depth is not None]
    return found if len(found) == len(results) else []


def figures(results: Sequence[SeedResult]) -> Metrics:
    """Return the metrics for the report card."""
    own, refitted, both = zip(*(result.refinements for result in results), strict=True)
    gains = {arm: [result.gain(arm) for result in results] for arm in ("P", "F")}
    recursions = [result.arms["R"] for result in results]
    settings = recursions[0].outcome.config
    # A curriculum may begin with a single exit, which has no order.
    validations = [in_order(exits) for one in recursions for exits in validated_exits(one.records) if len(exits) > 1]
    norms = [record["train/grad_norm"] for one in recursions for record in one.records if "train/grad_norm" in record]
    model = recursions[0].manifest["model"]
    runs = [run for result in results for run in result.arms.values()]
    commits = dict.fromkeys(run.outcome.environment["Git Information"]["Commit"] for run in runs)
    return {
        "Verdict": verdict(own, both, gains),
        "Preset": settings["recursion"],
        **{name: settings[name] for name in (*PRESET_FIELDS, "matrix_lr", "embedding_lr")},
        **{name: settings[name] for name in OWN_FIELDS if settings.get(name)},
        "Refinement": measured(*interval(own)),
        "Refinement, first exit refitted": measured(*interval(refitted)),
        "Refinement, first and last exit refitted": measured(*interval(both)),
        "Exits in order": f"{sum(validations)} of {len(validations)} validations",
        "Gradient norm of R": f"{statistics.median(norms):.2f} in the median, {max(norms):.2f} at most",
        APPLICATIONS: applications(model, settings),
        **(depth_figures(depths) if (depths := depths_of(results)) else {}),
        "Batches of R, D, P, F and L": ", ".join(result.batches for result in results),
        "Steps of a refit": ", ".join(str(result.steps) for result in results),
        "Training of all arms": duration(sum(run.outcome.figure(SECONDS) for run in runs)),
        "Precision": recursions[0].precision,
        "Commits of the arms": ", ".join(commits),
    }


def pictures(result: SeedResult) -> list[Record]:
    """Return the exits of R over the steps, and the arms over the steps and over the seconds, of a seed."""
    records = result.arms["R"].records
    exits = {"title": "Exits of R, first seed", "x": "step", "y": "bits per byte", "series": {}}
    for number in range(len(result.arms["R"].exits)):
        exits["series"][f"exit {number}"] = metric_curve(records, f"val/bpb at exit {number}")
    found = [exits]
    for x, over in (("step", "step"), ("seconds", "total_training_time")):
        picture = {"title": f"Arms over the {x}, first seed", "x": x, "y": "bits per byte", "series": {}}
        for arm, run in result.arms.items():
            picture["series"][arm] = metric_curve(run.records, "val/bpb", over=over)
        found.append(picture)
    return found
