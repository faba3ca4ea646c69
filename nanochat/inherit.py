"""The settings that all fine-tuning shares; those that are not given are the parent's."""

from dataclasses import dataclass, fields, replace
from typing import Any

from nanochat.config import Count, option
from nanochat.log import print0
from nanochat.stages import MODELS

MAY = {"may_change": True}
SIDE = {"may_change": True, "in_card": False}
RATE = {"group": "optimizer", "least": 0}
MIXED = "tasks with their epochs, like smoltalk,gsm8k:2; of the default those that are here"
HORIZONS = ("num_iterations", "target_seconds", "num_epochs")


@dataclass(frozen=True)
class FineTune:
    """What every script has that goes on from a checkpoint of another stage. None: as the parent was trained."""

    run: str = option("dummy", "name for W&B; dummy: do without", group="run", may_change=True)
    tag: str = option("d12", "name of this run's folder", group="run", **SIDE)
    source: str = option("base", f"stage whose model to take: {', '.join(MODELS)}", group="run")
    model_tag: str = option("", "run whose model to take; empty: that of the same tag", group="run")
    model_step: Count = option(-1, "its checkpoint, -1: the newest", group="run", least=-1, in_card=False)
    seed: Count = option(42, "of the order of the data", group="run", least=0)
    resume: str = option("auto", "auto: go on if this run was begun; a step's number; or never", group="run", **SIDE)

    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device", may_change=True)
    dtype: str = option("auto", "auto, bf16, fp16 or fp32; on a CPU auto measures", group="device")
    attention: str = option("auto", "auto, or a path of nanochat/attention.py", group="device", **SIDE)
    compile: bool = option(
        True, "compile the blocks, where the run is long enough to gain by it", group="device", **SIDE
    )
    checkpointing: bool = option(False, "compute activations twice to save memory", group="device", may_change=True)

    num_iterations: Count = option(-1, "steps to train; of this box give one", group="horizon", unit="STEPS")
    target_seconds: float = option(-1.0, "time to train", group="horizon", unit="SECONDS")
    num_epochs: float = option(-1.0, "passes over the data; 1 if nothing is given", group="horizon", unit="EPOCHS")

    max_seq_len: Count | None = option(None, "length of a row, None: the parent's", group="batch", least=1)
    device_batch_size: str = option("auto", "rows at once on a device; auto: the parent's", group="batch", **MAY)
    total_batch_size: Count | None = option(None, "tokens of a step, None: the parent's", group="batch", least=1)

    embedding_lr: float | None = option(None, "AdamW, None: the parent's", **RATE)
    unembedding_lr: float | None = option(None, "AdamW, None: the parent's", **RATE)
    matrix_lr: float | None = option(None, "Muon, None: the parent's", **RATE)
    scalar_lr: float | None = option(None, "AdamW, None: the parent's", **RATE)
    init_lr_frac: float = option(0.8, "of these rates, that of the first step", **RATE)
    weight_decay: float = option(0.0, "Muon's; pretraining ends with none", **RATE)
    warmup_steps: Count = option(0, "to the full learning rate", unit="STEPS", **RATE)
    warmdown_ratio: float = option(0.5, "share of the run in which it falls", **RATE)
    final_lr_frac: float = option(0.0, "of the learning rate at the end", **RATE)
    grad_clip: float | None = option(None, "largest norm of the gradient, 0: any; None: the parent's", **RATE)
    warm_start: bool = option(True, "begin with the parent's momenta", group="optimizer")

    save_every: Count = option(1000, "steps between them; -1: only the last", group="checkpoints", least=-1, **SIDE)
    keep_last: Count = option(2, "newest checkpoints to keep", group="checkpoints", least=0, **SIDE)
    keep_every: Count = option(0, "keep those of every so many steps too", group="checkpoints", least=0, **SIDE)

    def __post_init__(self):
        if self.source not in MODELS:
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")
        given = {name: value for name in HORIZONS if (value := getattr(self, name)) != -1}
        flags = [f"--{name.replace('_', '-')}={value:g}" for name, value in given.items()]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(flags)} are {len(given)} horizons: keep one of them")
        if given and not min(given.values()) > 0:
            raise ValueError(f"{flags[0]} is no horizon: it has to be more than 0")

    @property
    def epochs(self) -> float:
        return 1.0 if self.num_epochs == -1 else self.num_epochs


@dataclass(frozen=True)
class ChatTraining(FineTune):
    """Of those, what scripts have that train on a mixture of conversations."""

    mixture: str = option("", MIXED, group="data")
    eval_every: Count = option(200, "steps between validations; 0: at the ends; -1: none", group="evaluation", least=-1)
    eval_tokens: Count = option(-1, "of validation rows; -1: 5e6, on a CPU 125,000", group="evaluation", unit="TOKENS")
    eval_metrics_every: Count = option(200, "steps between scores of tasks; 0: at the end; -1: none",
        group="evaluation", least=-1)  # fmt: skip
    eval_metrics_max_problems: Count = option(1024, "of each task, 0: all", group="evaluation", least=0)
    eval_metrics_tasks: str = option("", "joined by |; empty: those answered by a letter", group="evaluation")


def inherit(config: Any, manifest: dict[str, Any]) -> Any:
    """The config with all that was not given taken from a checkpoint's manifest, and told."""
    before, loop = manifest["config"], manifest["loop"]
    if before["total_batch_size"] == -1:  # it followed from the horizon
        before = before | {"total_batch_size": loop["tokens"] // loop["step"]}
    found = {field.name: before[field.name] for field in fields(config) if getattr(config, field.name) is None}
    if (config.max_seq_len or 0) > (limit := manifest["model"]["max_seq_len"]):
        raise ValueError(f"--max-seq-len={config.max_seq_len} is longer than the model's context, take at most {limit}")
    if found:
        print0(f"inherited: {', '.join(f'{name} {value:,}' for name, value in found.items())}")
    return replace(config, **found)
