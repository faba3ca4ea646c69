"""Compare recursion with its compute: runs of five arms on the same batches, refits of exits, and a verdict.

A large refinement from the first exit to the last proves little: the loss weighs the first exit least, so it may merely
be trained badly. So the first exit gets a head of its own, trained until validation stops falling; and other models
spend the same compute in another way. The refitted head reads more text than the model did, so the last exit is
refitted too, for a comparison on equal terms.
"""

import json
import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

import torch

from nanochat.checkpoint import Checkpoint, build_model, newest, tokenizer_of
from nanochat.config import flag_of
from nanochat.data.corpus import Corpus, open_corpus
from nanochat.dataloader import TextLoader
from nanochat.evals.bpb import EvalText, bits_per_byte, read_text
from nanochat.evals.refinement import LEAST_REFINEMENT, refinement, validated_exits
from nanochat.gpt import GPT
from nanochat.lab.intervals import interval
from nanochat.log import MetricLog, Record, print0, read_metrics
from nanochat.models import config_of, new_model
from nanochat.objectives import next_token
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.param_groups import build_groups
from nanochat.paths import stage_dir
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
BPB, FLOPS = "Final validation bpb", "Number of FLOPs per token"  # metrics of base training
# Settings in which an arm may differ from R, and a run from that of another seed.
FREE_IN_ARM = {*Preset._fields, "recursion", "depth", "model", "num_iterations", "target_seconds"}
FREE_IN_SEED = {"seed", "target_seconds"}  # W takes as long as its R
TOLERANCE = 0.05  # for the FLOPs of F and the seconds of W, relative to R
REFIT_STEPS = 50  # between validations
REFIT_RATES = (1.0, 0.25, 0.0625)  # factors for the learning rate, each until validation stops falling
LEAST_GAIN = 0.001  # of the bits per byte: less counts as no fall
# Criteria for a run before a longer one.
EXPECTED_REFINEMENT, EXPECTED_NORM = 0.15, (0.5, 1.5)
LOSS_PARTS = 5


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
            raise ValueError(f"the run {tag} has not finished: bash runs/recursion.sh trains all arms")
        return cls(Outcome.load(folder / "outcome.json"), newest(folder), read_metrics(folder / "metrics.jsonl"))

    def figure(self, name: str) -> float:
        """Return a metric of the outcome as a number."""
        value = self.outcome.metrics[name]
        return value["value"] if isinstance(value, dict) else value

    @property
    def seconds(self) -> float:
        return self.checkpoint.manifest["loop"]["seconds"]

    @property
    def exits(self) -> list[float]:
        """Bits per byte at each exit, in the last validation."""
        return validated_exits(self.records)[-1]

    @property
    def applications(self) -> int:
        """Times that each block runs for a token."""
        model = new_model(config_of(self.checkpoint.manifest))
        return model.cached_layers // model.config.depth

    def require_settings_of(self, other: "ArmRun", free: Container[str]) -> None:
        """Raise a ValueError if this run differs from another one in a setting that is not free."""
        own, others = self.checkpoint.manifest["config"], other.checkpoint.manifest["config"]
        for name, value in own.items():
            if name not in free and value != others.get(name):
                raise ValueError(
                    f"{self.outcome.tag} has {flag_of(name)}={value}, and {other.outcome.tag} {others.get(name)}: "
                    "train one of them again"
                )


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
        is_recursive = run.checkpoint.manifest["model"]["supervision"] > 0
        if is_recursive != (arm == "R") or run.applications != (recursion.applications if arm in "RL" else 1):
            raise ValueError(f"{run.outcome.tag} is not the model of arm {arm}: train it again")
    for arm in "PWL":
        counts = [run.figure("Number of parameters") for run in (arms[arm], recursion)]
        if counts[0] != counts[1]:
            raise ValueError(f"arm {arm} has {counts[0]:,} parameters, and R {counts[1]:,}: train one of them again")
    shares = {
        "F": arms["F"].figure(FLOPS) / recursion.figure(FLOPS),
        "W": arms["W"].seconds / recursion.seconds,
    }
    for arm, share in shares.items():
        if abs(share - 1) > TOLERANCE:
            raise ValueError(f"arm {arm} took {share:.2f} times the compute of R: train it again")
    return arms


def open_text(run: ArmRun) -> Corpus:
    """Return the text that a run was trained on."""
    return open_corpus(run.checkpoint.manifest["config"]["data"], run.outcome.config["num_shards"])


def loader_of(run: ArmRun, corpus: Corpus, device: torch.device | str = "cpu") -> TextLoader:
    """Return a loader like that of a run, at its start."""
    config = run.checkpoint.manifest["config"]
    length, seed, lanes = config["max_seq_len"], config["seed"], run.outcome.config["lanes"]
    rows = config["total_batch_size"] // length
    return TextLoader(corpus, tokenizer_of(run.checkpoint), rows, length, device=device, seed=seed, lanes=lanes)


def batches_hash(run: ArmRun, corpus: Corpus, steps: int) -> str:
    """Return the SHA-256 of the first batches of a run, read again.

    Where the run has no more steps, the loader has to end at the position in the checkpoint.
    """
    digest = sha256()
    with loader_of(run, corpus) as loader:
        for _ in range(steps):
            for part in next(loader):
                digest.update(part.numpy().tobytes())
        place = json.loads(json.dumps(loader.state_dict()))  # a manifest has lists in place of tuples
    if run.checkpoint.step == steps and place != run.checkpoint.manifest["source"]:
        raise ValueError(f"{run.outcome.tag} was trained on other batches than its settings give: train it again")
    return digest.hexdigest()


def common_hash(arms: Mapping[str, ArmRun], corpus: Corpus) -> str:
    """Return the hash of the batches that all arms have read; ValueError if they differ. W reads more, or fewer."""
    steps = min(run.checkpoint.step for run in arms.values())
    if len({run.checkpoint.step for arm, run in arms.items() if arm != "W"}) > 1:
        raise ValueError("the arms R, P, F and L have different numbers of steps: train them again")
    found = {arm: batches_hash(run, corpus, steps) for arm, run in arms.items()}
    if len(set(found.values())) > 1:
        raise ValueError(f"the arms were trained on different batches: {found}")
    return found["R"]


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
    model.set_steps(exits)
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
    model = model_of_exit(exits, checkpoint, runtime)
    manifest = checkpoint.manifest
    rows = manifest["loop"]["device_batch"]
    settings = TrainingSettings(total_batch_size=manifest["config"]["total_batch_size"], save_every=-1)
    groups = build_groups(model, settings, rate_scale(settings.total_batch_size), 0.0)
    [head] = [group for group in groups if group.name == "unembedding"]
    optimizer = Optimizer([head])
    flops = model.flops_per_token()
    loop = TrainingLoop(model, source, next_token, optimizer, runtime, log, settings, State(), {}, rows, flops)

    def measure() -> float:
        return bits_per_byte(model, text, model.config.max_seq_len, rows, runtime).value

    lowest = measure()
    done = []
    for number, factor in enumerate(REFIT_RATES):
        head.lr = head.initial_lr * factor
        done.append(0)
        falls = True
        while done[-1] < rounds[number] if rounds else falls:
            done[-1] += 1
            loop.steps = loop.state.step + REFIT_STEPS
            loop.run([], lambda state: None, [])
            found = measure()
            print0(f"refit: step {loop.state.step}, {found:.4f} bits per byte at exit {exits - 1}")
            falls = found < (1 - LEAST_GAIN) * lowest
            lowest = min(lowest, found)
    return Refit(lowest, done)


@dataclass(frozen=True)
class SeedResult:
    """The arms of a seed, compared."""

    arms: dict[str, ArmRun]
    batches: str  # hash of the batches that all arms have read
    first: Refit  # of R's first exit
    last: Refit
    nats: float  # per token, for one bit per byte

    @property
    def refinements(self) -> tuple[float, float, float]:
        """The refinement of R as it is, with the first exit refitted, and with both exits refitted."""
        exits = self.arms["R"].exits
        both = [self.first.bpb, self.last.bpb]
        return refinement(exits), refinement([self.first.bpb, exits[-1]]), refinement(both)

    def gain(self, arm: str) -> float:
        """Return the bits per byte of an arm minus those of R."""
        return self.arms[arm].figure(BPB) - self.arms["R"].figure(BPB)


def compare(arms: dict[str, ArmRun], runtime: Runtime, log: MetricLog) -> SeedResult:
    """Compare the arms of a seed, and refit the first and the last exit of R."""
    corpus = open_text(arms["R"])
    batches = common_hash(arms, corpus)
    return SeedResult(arms, batches, *refit_exits(arms["R"], corpus, runtime, log))


def refit_exits(run: ArmRun, corpus: Corpus, runtime: Runtime, log: MetricLog) -> tuple[Refit, Refit, float]:
    """Refit the first exit, and the last one for as long; return both, and the nats per token for one bit per byte."""
    size = run.outcome.config["eval_bytes"]
    size = runtime.validation_bytes if size < 0 else size
    text = read_text(corpus.batches("val"), tokenizer_of(run.checkpoint), size)
    refits = []
    for exits in (1, len(run.exits)):
        with loader_of(run, corpus, runtime.device) as source:
            source.load_state_dict(run.checkpoint.manifest["source"])  # goes on where the run has ended
            rounds = refits[0].rounds if refits else ()
            refits.append(refit(exits, run.checkpoint, source, text, runtime, log, rounds))
    return *refits, math.log(2) * text.bytes / (len(text.ids) - 1)


# ---- the verdict ----


def verdict(own: Sequence[float], refitted: Sequence[float], gains: Mapping[str, Sequence[float]]) -> str:
    """Return the verdict, by the 95 % intervals over seeds.

    own: the refinement of the model as it is, for each seed. refitted: with the first exit's own head. gains: arm ->
    the arm's bits per byte minus those of R.
    """
    if len(own) < 2:
        return ONE_SEED
    beats_exit, beats_plain, beats_deep = (interval(some).is_positive for some in (refitted, gains["P"], gains["F"]))
    if beats_exit and beats_plain:
        return "better than its compute" if beats_deep else "depth only"
    if not beats_exit and statistics.fmean(own) >= LEAST_REFINEMENT:
        return "a poor first exit"
    return "none"


# ---- a run before a longer one ----


def unmet_criteria(records: Sequence[Record]) -> list[str]:
    """Return the criteria for a longer run that a finished one of the preset aggressive does not meet."""
    exits = validated_exits(records)
    steps = [record for record in records if "train/grad_norm" in record]
    if not exits or len(steps) < LOSS_PARTS:
        return ["it has no validation, or too few steps"]
    fall = refinement(exits[-1])
    norm = statistics.median(record["train/grad_norm"] for record in steps)
    low, high = EXPECTED_NORM
    size = len(steps) // LOSS_PARTS
    losses = [statistics.fmean(record["train/loss"] for record in steps[i * size :][:size]) for i in range(LOSS_PARTS)]
    criteria = {
        "an exit is not better than the one before it": all(later < earlier for earlier, later in pairwise(exits[-1])),
        f"the refinement is {100 * fall:.1f}%, below {100 * EXPECTED_REFINEMENT:.0f}%": fall >= EXPECTED_REFINEMENT,
        f"the gradient's norm is {norm:.2f} in the median, not {low} to {high}": low <= norm <= high,
        "the loss does not fall from each fifth of the run to the next": losses == sorted(losses, reverse=True),
    }
    return [sentence for sentence, is_met in criteria.items() if not is_met]
