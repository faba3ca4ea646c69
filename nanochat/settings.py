"""The option groups that scripts share, each flag defined once.

A script's Config inherits the groups it needs (`--help` shows the last base first) and adds its own flags. A shared
flag gets another default by `name = default`. The word in `@options("run")` is the title of a box in `--help`.
"""

import re
from dataclasses import fields
from typing import ClassVar, TypeVar

from nanochat.config import Count, Resume, flag_of, option, options
from nanochat.errors import UserError
from nanochat.log import TrackerName
from nanochat.stages import Source

Rate = float | None  # None: the value of the parent, see start.inherit
Setting = TypeVar("Setting")


def given(setting: Setting | None) -> Setting:
    """Return a setting that is not None: a new run has its default, and `start.inherit` has filled in the others."""
    assert setting is not None
    return setting


CHAT_TEMPERATURE = 0.6  # of a model that has no setting for it
LEAST_VOCABULARY = 265  # 256 bytes and 9 special tokens
BEYOND_VOCABULARY = (1 << 21) + 1  # rustbpe has no larger ones

# ---- groups for any script ----
# `may_change=True`: a run may resume with another value. `in_card=False`: the report card leaves the flag out.


@options("run")
class TagSettings:
    """The name of a run."""

    tag: str = option("d12", "run name; also names its folders", may_change=True, in_card=False, short="-g")


@options("run")
class LogSettings:
    """The tracker that mirrors the metrics."""

    run: str = option("dummy", "name of the run in a tracker (dummy: no tracker)", may_change=True, off="dummy")
    tracker: TrackerName = option(
        "wandb", "wandb: W&B; trackio: on this machine, without an account", may_change=True, off="wandb"
    )


@options("device")
class DeviceSettings:
    """The device and the activations' precision."""

    # A run may move to another machine, but keeps the precision that it began with.
    device_type: str = option("auto", "auto, cuda, mps or cpu", may_change=True)
    dtype: str = option("auto", "precision: auto, bf16, fp16 or fp32")


@options("model")
class CheckpointChoice(TagSettings):
    """A checkpoint of the run `tag`."""

    # For reading a model; training scripts choose by --resume.
    step: Count = option(-1, "step of the checkpoint (-1: the newest)", least=-1, in_card=False, short="-s")
    exits: Count = option(0, "supervision steps of a recursive model to run at inference (0: as in training)", off=0)

    def evaluation_tag(self, asked: str = "") -> str:
        """Return the name of an evaluation's folder: those by fewer exits stay beside the others."""
        tag = asked or self.tag
        return f"{tag}-exits-{self.exits}" if self.exits else tag


@options("model")
class ModelChoice(CheckpointChoice):
    """A trained model: stage, run and checkpoint."""

    source: Source = option("sft", "training stage of the model", short="-i")
    # nanochat/quant.py has the grammar.
    quant: str = option(
        "", "quantize the weights by this recipe or plan, like int8-row; a CPU computes with it (default: none)"
    )

    def evaluation_tag(self, asked: str = "") -> str:
        """Return the name of an evaluation's folder, which those of rounded weights have for themselves too."""
        tag = super().evaluation_tag(asked)
        return tag + "-" + re.sub(r"[^\w.+]+", "-", self.quant) if self.quant else tag


@options("samples")
class SamplingSettings:
    """Sampling settings."""

    temperature: float = option(0.0, "sampling temperature (0: greedy)", short="-t")
    top_k: Count = option(50, "sample from the k most likely tokens (0: all)", short="-k")
    top_p: float = option(
        1.0, "nucleus sampling: the smallest set of tokens whose probabilities sum to top_p", below=1, off=1.0
    )
    max_new_tokens: Count = option(512, "maximum number of tokens in an answer", least=1)
    seed: Count = option(0, "seed for sampled answers", in_card=False)


@options("samples")
class AnswerSettings(SamplingSettings):
    """Answers to the problems of a task."""

    num_samples: Count = option(1, "samples per problem, for pass@k", least=1)
    repeats: Count = option(
        1, "repeat the evaluation k times with other random numbers, to report avg@k", least=1, off=1
    )
    max_problems: Count = option(0, "problems per task (0: all)", group="tasks", off=0)


@options("data")
class TextSettings:
    """Text for training a tokenizer or a model, and for evaluation."""

    # corpus.open_corpus has the grammar for names and mixes.
    data: str = option("auto", "a folder of text, a named corpus, or a mix of them", in_card=False)


@options("data")
class CorpusSettings(TextSettings):
    """Text for a model."""

    num_shards: Count = option(
        0,
        "shards of a named corpus (0: enough for the run; the corpus's default, where a clock ends it)",
        in_card=False,
    )


@options()
class TokenizerSettings(TextSettings, TagSettings):
    """A tokenizer and its text."""

    tag = "default"


# ---- groups for training ----


@options("optimizer")
class OptimizerSettings:
    """The steps of the optimizer: how many, how large, and at which learning rates."""

    # At most one flag that ends a run is given; -1: not given. Flags in this group end a run; a script may add others.
    num_iterations: Count = option(-1, "number of optimizer steps", group="horizon")
    target_seconds: float = option(-1.0, "training time in seconds", group="horizon")

    # Also limits prompts with answers, once the model is used.
    max_seq_len: Count | None = option(2048, "sequence length in tokens", group="batch", least=1)
    # Only memory decides: the result differs by rounding only.
    device_batch_size: str = option(
        "auto", "sequences per device and micro-batch (auto: the most that fit)", group="batch", may_change=True
    )
    # scaling.plan_run chooses it for -1. Gradients are summed over micro-batches and ranks, so only the total changes
    # the training.
    total_batch_size: Count | None = option(
        -1, "tokens per optimizer step, over all ranks (-1: from the scaling rule)", group="batch", least=1
    )

    # The rates are for a batch of 2^19 tokens (embeddings and head: for width 768), scaling.rate_scale has the factor
    # for others. param_groups.RULES says which parameters a rate belongs to, and how batch and width scale it.
    embedding_lr: Rate = option(0.3, "learning rate of embeddings (AdamW)")
    unembedding_lr: Rate = option(0.008, "learning rate of the head (AdamW)")
    matrix_lr: Rate = option(0.02, "learning rate of matrices (Muon)")
    scalar_lr: Rate = option(0.5, "learning rate of scalars (AdamW)")
    # Muon alone: param_groups.RULES has a fixed decay for each AdamW group.
    weight_decay: float = option(0.28, "weight decay of the matrices, scaled with batch size and horizon")
    # The schedule, see schedules.py: warmup by steps, then constant, then warmdown by progress.
    warmup_steps: Count = option(40, "learning-rate warmup steps (capped at 10 % of the run)")
    warmdown_ratio: float = option(0.65, "fraction of the run over which the learning rate decays")
    final_lr_frac: float = option(0.05, "final learning rate, as a fraction of the peak")
    # Off by default, as in the public reference's recipe; its effect here was not measured.
    grad_clip: Rate = option(0.0, "clip the gradient norm at this value (0: off)", off=0)

    def __post_init__(self) -> None:
        # Scripts add flags to the group: base training counts FLOPs, fine-tuning epochs.
        names = [field.name for field in fields(self) if field.metadata["group"] == "horizon"]
        given = {name: getattr(self, name) for name in names if getattr(self, name) != -1}
        if len(given) > 1:
            raise UserError(f"{' and '.join(map(flag_of, given))} both set the length of the run: keep one")
        for name, value in given.items():
            if not value > 0:  # NaN is not above 0 either
                raise UserError(f"{flag_of(name)} has to be more than 0, not {value:g}")


@options("run")
class TrainingSettings(OptimizerSettings, DeviceSettings, TagSettings, LogSettings):
    """Every training script has these: a run's name, device, steps, evaluations and checkpoints."""

    seed: Count = option(42, "seed for weight initialization and data order")
    # Read by checkpoint.to_resume.
    resume: Resume = option(
        "auto",
        "auto: resume from the newest checkpoint; never: start again; a step: go back to its checkpoint, with other"
        " learning rates if you like",
        may_change=True,
        in_card=False,
    )

    # The attention paths give the same result but for rounding.
    attention: str = option(
        "auto",
        "attention kernel: auto, or a key of PATHS in attention.py",
        group="device",
        may_change=True,
        in_card=False,
    )
    # On a CPU a short run ends before the compiler would: see runtime.compiling_pays.
    compile: bool = option(
        True,
        "torch.compile the blocks if the run is long enough to benefit",
        group="device",
        may_change=True,
        in_card=False,
    )
    # About a third more computation; activations for one layer at a time.
    checkpointing: bool = option(
        False, "recompute activations in the backward pass to save memory", group="device", may_change=True
    )
    # For models that do not fit; see nanochat/sharding.py.
    shard_weights: bool = option(
        False,
        "shard weights and gradients over the ranks too, not only optimizer states",
        group="device",
        may_change=True,
    )

    # Fixed for a run: the lowest validation depends on how often one is made.
    eval_every: Count = option(
        250, "validate every N steps (0: only before and after training; -1: never)", group="evaluation", least=-1
    )

    # Besides, a checkpoint is saved at the end and when a signal stops the run.
    save_every: Count = option(
        1000,
        "save every N steps (-1: only at the end)",
        group="checkpoints",
        least=-1,
        may_change=True,
        in_card=False,
    )
    # One more is on disk while a new one is written.
    keep_last: Count = option(
        2, "number of checkpoints to keep (0: all)", group="checkpoints", may_change=True, in_card=False
    )

    dry_run: bool = option(False, "print the plan and exit", may_change=True, in_card=False)
    on: str = option(
        "",
        "plan the dry run for this hardware, like 8xH100 (default: this machine)",
        group="run",
        may_change=True,
        in_card=False,
    )
    json: bool = option(False, "print the dry run as JSON", group="run", may_change=True, in_card=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.on or self.json) and not self.dry_run:
            raise UserError("--on and --json are for a plan: add --dry-run")


@options("model")
class PretrainSettings(CorpusSettings, TrainingSettings):
    """A new model, the text to train it on, and the length of the run. All that is not given follows from --depth."""

    tag = option("", "run name; also names its folders (default: d and the depth)")

    # The main job plans before it trains a tokenizer, and another one may lie in its place.
    vocab_size: Count = option(
        0,
        "plan the dry run with this vocabulary (default: the trained tokenizer's)",
        group="run",
        may_change=True,
        in_card=False,
        least=1,
    )

    # Master weights stay fp32; fp8.convert picks the layers.
    fp8: bool = option(False, "fp8 matmuls (Ada, Hopper and newer)", group="device")

    # A name in models.CONFIGURATIONS or registry.CONFIGURATIONS; fields may follow: --model=reference,backout=false
    model: str = option("reference", "architecture: reference, induction, october-2025, golf, golf-seed or portable")
    # With --aspect-ratio and --head-dim, depth gives width and heads: see scaling.plan_run.
    depth: Count = option(12, "number of layers; the one dial: width, batch, horizon and rates follow from it", least=1)
    aspect_ratio: Count = option(64, "model width per layer", least=1)
    width: Count = option(0, "model width (0: depth x aspect_ratio)", off=0)
    head_dim: Count = option(128, "channels per attention head; the model width is a multiple of it", least=1)
    # Fewer key heads make the KV cache smaller when the model generates.
    kv_heads: Count = option(0, "key/value heads for grouped-query attention (0: as many as query heads)", off=0)
    window_pattern: str = option(
        "", "attention windows, repeated over the layers; S: a quarter of the context, L: all (default: the model's)"
    )
    # OptimizerSettings allows one flag in this group, --num-iterations and --target-seconds included.
    target_flops: float = option(-1.0, "total training FLOPs", group="horizon")
    target_param_data_ratio: float = option(-1.0, "tokens per parameter (12 if no horizon is given)", group="horizon")

    tokenizer_tag: str = option("default", "run that trained the tokenizer", group="data", in_card=False)
    # The order in which rows are trained depends on lanes and seed, not on the number of ranks.
    lanes: Count = option(
        64,
        "data lanes; a multiple of the world size, so that the data order does not depend on it",
        group="data",
        in_card=False,
    )
    # Counted in bytes, so that runs with other tokenizers read the same text.
    eval_bytes: Count = option(-1, "bytes of validation text (-1: 20 MB, on a CPU 500 kB)", group="evaluation", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size and not self.dry_run:
            raise UserError(
                "--vocab-size is for a plan: add --dry-run, or train the tokenizer with scripts.tok_train --vocab-size"
            )

    @property
    def model_fields(self) -> dict[str, int | float]:
        """Fields of the model's config that a track's flags set, beside --model and the sizes."""
        return {}

    @property
    def share_of_flops(self) -> float:
        """Of the FLOPs per token that the model's config stands for: what a step takes in the mean over the run."""
        return 1.0

    @property
    def steps_together(self) -> int:
        """Steps that only make sense together: a number of steps that follows from a budget is a multiple of it."""
        return 1

    @property
    def model_notes(self) -> list[str]:
        """Lines about them for the plan that is printed."""
        return []


# ---- fine-tuning ----


@options("model")
class FineTuneSettings(TrainingSettings):
    """Training from another stage's checkpoint. A setting that is None is the parent's (see start.inherit)."""

    # The parent: its stage and its run.
    source: Source = option("base", "stage of the parent model")
    # One tag through all stages needs no flag.
    model_tag: str = option("", "tag of the parent model (default: the same tag)")
    # Ends a run by the progress through the data, where neither steps nor seconds do.
    num_epochs: float = option(-1.0, "passes over the data (1 if no horizon is given)", group="horizon")

    # None: the parent's value.
    max_seq_len = None
    total_batch_size = option(None, "tokens per optimizer step, over all ranks")
    embedding_lr = None
    unembedding_lr = None
    matrix_lr = None
    scalar_lr = None
    grad_clip = None

    # Pretraining ends without weight decay, and fine-tuning goes on without.
    weight_decay = option(0.0, "weight decay of matrices")
    warmup_steps = 0
    warmdown_ratio = 0.5
    final_lr_frac = 0.0
    # Below 1: the parent has learned most already, and large steps would undo that.
    init_lr_frac: float | None = option(0.8, "initial learning rate, as a fraction of the parent's", group="optimizer")
    warm_start: bool = option(True, "start from the parent's optimizer state", group="optimizer")
    # Recorded in the manifest, for chat_cli and the page. A small model often samples a wrong word at higher ones.
    chat_temperature: float | None = option(
        None, "default sampling temperature of chat_cli and the page (default: the parent's, or 0.6)"
    )

    @property
    def epochs(self) -> float:
        return 1.0 if self.num_epochs == -1 else self.num_epochs


@options("samples")
class AnswerTuneSettings(FineTuneSettings):
    """Fine-tuning on answers to prompts: reinforcement learning and preferences."""

    # A public model has recorded the rates of fine-tuning, and its descendants keep them; others those of pretraining.
    usual_lr_frac: ClassVar[float] = 0.015
    public_lr_frac: ClassVar[float] = 0.3

    source = "sft"
    examples_per_step: Count = option(16, "prompts per step, over all ranks", least=1)
    init_lr_frac: float | None = option(
        None,
        "initial learning rate, as a fraction of the parent's (default: 0.015; of a public model's rates, which are "
        "those of fine-tuning, 0.3)",
    )
    warmdown_ratio = 1.0
    # The parent's momenta come from another objective; starting with them was not measured.
    warm_start = False
    # Answers differ in length at every step: flex, and compiled blocks, would be compiled again and again.
    attention = "sdpa"
    compile = False


@options("evaluation")
class TaskScoreSettings(FineTuneSettings):
    """Scores of tasks during fine-tuning."""

    # Task scores cost more than validation.
    eval_metrics_every: Count = option(
        200, "score the tasks every N steps (0: only after training; -1: never)", least=-1
    )
    eval_metrics_max_problems: Count = option(1024, "problems of each task (0: all)")
    # A letter takes one forward pass; written answers take many, token by token.
    eval_metrics_tasks: str = option(
        "", "tasks to score, separated by commas (or |; default: the multiple-choice tasks)"
    )


@options("data")
class ChatTuneSettings(TaskScoreSettings):
    """Fine-tuning on a mixture of conversations."""

    # tasks.mixing has the grammar, with samples (NAME@ROWS), shares (NAME%SHARE), augmentations and files.
    mixture: str = option(
        "",
        "tasks and their epochs, like smoltalk|multi-turn,gsm8k:2 (default: the stage's, if their files are available)",
    )
    # What makes runs on different mixtures alike: a prompt may be much longer than its answer.
    target_supervised_tokens: Count = option(
        -1, "number of tokens with a loss: the assistant's, in midtraining all", group="horizon"
    )
    eval_every = 200
    # Rows from the mixture's validation split, the same for any number of ranks.
    eval_tokens: Count = option(-1, "validation tokens (-1: 5e6, on a CPU 125,000)", group="evaluation", least=1)
