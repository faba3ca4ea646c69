"""Compare recursion with its compute: runs of five arms on the same batches, refits of exits, and a verdict.

A large refinement from the first exit to the last proves little: the loss weighs the first exit least, so it may merely
be trained badly. So the first exit gets a head of its own, trained until validation stops falling; and other models
spend the same compute in another way. The refitted head reads more text than the model did, so the last exit is
refitted too, for a comparison on equal terms.
"""

import json
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nanochat.checkpoint import Checkpoint, build_model, newest, tokenizer_of
from nanochat.config import flag_of
from nanochat.data.corpus import Corpus, open_corpus
from nanochat.dataloader import TextLoader
from nanochat.evals.bpb import EvalText, bits_by_exit, read_text
from nanochat.evals.refinement import LEAST_REFINEMENT, refinement, validated_exits
from nanochat.gpt import GPT
from nanochat.lab.intervals import interval
from nanochat.log import MetricLog, Record, print0, read_metrics
from nanochat.models import config_of
from nanochat.objectives import next_token
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.param_groups import build_groups
from nanochat.paths import stage_dir, text_sha256
from nanochat.runtime import Runtime
from nanochat.scaling import rate_scale
from nanochat.settings import Preset, TrainingSettings
from nanochat.train import State, TrainingLoop

ARMS = {
    "R": "recursion",
    "P": "same parameters, no loop",
    "F": "same FLOPs per token, more layers, no loop",
    "W": "same parameters, no loop, same seconds",
    "L": "as many applications, one state, loss at the end alone",
}
ONE_SEED = "no verdict: one seed"
# Metrics of base training, and the seconds that its checkpoint has.
BPB, FLOPS, PARAMETERS = "Final validation bpb", "Number of FLOPs per token", "Number of parameters"
SECONDS = "Seconds of training"
# Settings in which an arm may differ from R, and a run from that of another seed.
FREE_IN_ARM = {*Preset._fields, "recursion", "depth", "model", "num_iterations", "target_seconds"}
FREE_IN_SEED = {"seed", "target_seconds"}  # W takes as long as its R
TOLERANCE = 0.05  # for the FLOPs of F and the seconds of W, relative to R
REFIT_STEPS = 50  # between validations
REFIT_RATES = (1.0, 0.25, 0.0625)  # factors for the learning rate, each until validation stops falling
LEAST_GAIN = 0.001  # of the bits per byte: less counts as no fall


# ---- finished arms ----


class ArmRun(NamedTuple):
    """A finished base model of an arm."""

    outcome: Outcome
    checkpoint: Checkpoint
    records: list[Record]  # of the metric log

    @classmethod
    def read(cls, tag: str) -> "ArmRun":
        folder = stage_dir("base_train", tag)
        if not (folder / "outcome.json").exists():
            raise ValueError(f"the run {tag} has not finished: train it first, as bash runs/recursion.sh does")
        return cls(Outcome.load(folder / "outcome.json"), newest(folder), read_metrics(folder / "metrics.jsonl"))

    def figure(self, name: str) -> float:
        """Return a metric of the outcome, or the seconds of training, as a number."""
        value = self.checkpoint.manifest["loop"]["seconds"] if name == SECONDS else self.outcome.metrics[name]
        return value["value"] if isinstance(value, dict) else value

    @property
    def exits(self) -> list[float]:
        """Bits per byte at each exit, in the last validation."""
        return validated_exits(self.records)[-1]

    def require_settings_of(self, other: "ArmRun", free: Container[str]) -> None:
        """Raise a ValueError if this run differs from another one in a setting that is not free."""
        for name, value in self.checkpoint.manifest["config"].items():
            found = other.checkpoint.manifest["config"].get(name)
            if name not in free and value != found:
                flag = f"{self.outcome.tag} has {flag_of(name)}={value}"
                raise ValueError(f"{flag}, and {other.outcome.tag} {found}: train one of them again")


def read_arms(tag: str, seed: int) -> dict[str, ArmRun]:
    """Return the five arms of a seed; a ValueError says which one is not what the comparison needs."""
    arms = {arm: ArmRun.read(f"{tag}-{arm}-{seed}") for arm in ARMS}
    recursion = arms["R"]
    if recursion.checkpoint.manifest["config"]["seed"] != seed:
        raise ValueError(f"{recursion.outcome.tag} was not trained with --seed={seed}: train it again")
    for arm, run in arms.items():
        run.require_settings_of(recursion, FREE_IN_ARM)
        if not any("val/bpb" in record for record in run.records):
            raise ValueError(f"{run.outcome.tag} has no validation: train it again, with --eval-every")
        model = run.checkpoint.manifest["model"]
        if (model["supervision"] > 0) != (arm == "R") or (model["sweeps"] > 1) != (arm == "L"):
            raise ValueError(f"{run.outcome.tag} is not the model of arm {arm}: train it again")
    tolerated = {PARAMETERS: ("PWL", 0), FLOPS: ("F", TOLERANCE), SECONDS: ("W", TOLERANCE)}
    for name, (some, tolerance) in tolerated.items():
        for arm in some:
            own, other = arms[arm].figure(name), recursion.figure(name)
            if abs(own / other - 1) > tolerance:
                raise ValueError(f"{name}: arm {arm} has {own:,}, and R {other:,}: train one of them again")
    return arms


def open_text(run: ArmRun) -> Corpus:
    """Return the text that a run was trained on."""
    return open_corpus(run.checkpoint.manifest["config"]["data"], run.outcome.config["num_shards"])


def common_hash(arms: Mapping[str, ArmRun], corpus: Corpus) -> str:
    """Return a SHA-256 that identifies the batches of all arms; ValueError if they were trained on different ones.

    The setting in a loader's state (hash of the text, tokenizer, seed, lanes, length) decides the order of the rows;
    the rest is the position at the end. W reads more rows, or fewer.
    """
    recursion = arms["R"]
    expected = recursion.checkpoint.manifest["source"]
    if corpus.describe()["fingerprint"] != expected["setting"]["data"]:
        raise ValueError(f"the text has changed since {recursion.outcome.tag} was trained: put it back, or train again")
    for arm, run in arms.items():
        source = run.checkpoint.manifest["source"]
        is_same = source["setting"] == expected["setting"] if arm == "W" else source == expected
        if not is_same:
            names = f"{run.outcome.tag} and {recursion.outcome.tag}"
            raise ValueError(f"{names} differ in their batches, or in the number of steps: train one of them again")
    return text_sha256(json.dumps(expected, sort_keys=True))


# ---- refinement ----


class Refit(NamedTuple):
    """An exit that got a head of its own."""

    bpb: float  # lowest of the validations
    rounds: list[int]  # of REFIT_STEPS steps, at each of the rates


def model_of_exit(exits: int, checkpoint: Checkpoint, runtime: Runtime) -> GPT:
    """Return a model that ends at an exit of a recursive one, from 1; only its head, which is its own, is trained."""
    shape = config_of(checkpoint.manifest)
    model = build_model(replace(shape, tie_embeddings=False), runtime, weights=0)
    tensors = checkpoint.model_tensors()
    # A tied head is the embedding, which has to stay as it is.
    tensors.setdefault("head.weight", tensors["embed.weight"].clone())
    model.load_state_dict(tensors)
    model.steps = exits
    model.requires_grad_(False).head.requires_grad_(True)
    return model


def refit(
    exits: int,
    checkpoint: Checkpoint,
    source: TextLoader,
    text: EvalText,
    runtime: Runtime,
    log: MetricLog,
    rounds: Sequence[int] = (),
) -> Refit:
    """Train a head for an exit, from 1, at falling rates: at each of them until validation stops falling.

    rounds: train so long in any case, at each of the rates.
    """
    model, rows = model_of_exit(exits, checkpoint, runtime), checkpoint.manifest["loop"]["device_batch"]
    size = checkpoint.manifest["config"]["total_batch_size"]
    settings = TrainingSettings(total_batch_size=size, save_every=-1)
    groups = build_groups(model, settings, rate_scale(size), 0.0)
    [head] = [group for group in groups if group.name == "unembedding"]
    flops = model.flops_per_token()
    loop = TrainingLoop(model, source, next_token, Optimizer([head]), runtime, log, settings, State(), {}, rows, flops)

    def measure() -> float:
        return bits_by_exit(model, text, model.config.max_seq_len, rows, runtime)[-1].value

    lowest, done = measure(), []
    for number, factor in enumerate(REFIT_RATES):
        head.lr = head.initial_lr * factor
        done.append(0)
        falls = True
        while done[-1] < rounds[number] if rounds else falls:
            done[-1] += 1
            loop.steps = loop.state.step + REFIT_STEPS
            loop.run([], lambda state: None, [])
            found = measure()
            print0(f"refit: step {loop.steps}, {found:.4f} bits per byte at exit {exits - 1}")
            falls = found < (1 - LEAST_GAIN) * lowest
            lowest = min(lowest, found)
    return Refit(lowest, done)


class SeedResult(NamedTuple):
    """The arms of a seed, compared."""

    arms: dict[str, ArmRun]
    batches: str  # hash of the batches that all arms have read
    first: Refit  # of R's first exit
    last: Refit

    @property
    def refinements(self) -> tuple[float, float, float]:
        """The refinement of R as it is, with the first exit refitted, and with both exits refitted."""
        exits, first = self.arms["R"].exits, self.first.bpb
        return refinement(exits), refinement([first, exits[-1]]), refinement([first, self.last.bpb])

    def gain(self, arm: str) -> float:
        """Return the bits per byte of an arm minus those of R."""
        return self.arms[arm].figure(BPB) - self.arms["R"].figure(BPB)


def refit_exits(run: ArmRun, corpus: Corpus, runtime: Runtime, log: MetricLog) -> list[Refit]:
    """Refit the first exit of a run, and the last one for as long, on the text that comes after that of the run."""
    config, tokenizer = run.outcome.config, tokenizer_of(run.checkpoint)
    size, length = config["eval_bytes"], config["max_seq_len"]
    text = read_text(corpus.batches("val"), tokenizer, runtime.validation_bytes if size < 0 else size)
    source = TextLoader(
        corpus,
        tokenizer,
        config["total_batch_size"] // length,
        length,
        device=runtime.device,
        seed=config["seed"],
        lanes=config["lanes"],
    )
    refits, rounds = [], ()
    with source:
        for exits in (1, len(run.exits)):
            source.load_state_dict(run.checkpoint.manifest["source"])
            refits.append(refit(exits, run.checkpoint, source, text, runtime, log, rounds))
            rounds = refits[0].rounds
    return refits


# ---- the verdict ----


def verdict(own: Sequence[float], refitted: Sequence[float], gains: Mapping[str, Sequence[float]]) -> str:
    """Return the verdict, by the 95 % intervals over seeds.

    own: the refinement of the model as it is, for each seed. refitted: with the first exit's own head. gains: arm ->
    the arm's bits per byte minus those of R.
    """
    if len(own) < 2:
        return ONE_SEED
    beats_exit = interval(refitted).is_positive
    if beats_exit and interval(gains["P"]).is_positive:
        return "better than its compute" if interval(gains["F"]).is_positive else "depth only"
    return "none" if beats_exit or statistics.fmean(own) < LEAST_REFINEMENT else "a poor first exit"
