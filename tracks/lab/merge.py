"""Merge models with the same parent into one, without training.

python -m tracks.lab.merge --models=facts,sums --tag=both
python -m tracks.lab.merge --models=facts,sums --method=task --scale=2 --tag=both
python -m tracks.lab.merge --models=seed-1,seed-2,seed-3 --method=soup --dev=GSM8K --tag=soup
"""

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import AnswerSettings, DeviceSettings, TagSettings
from nanochat.stages import MODELS, Source

if TYPE_CHECKING:
    from nanochat.checkpoint import Checkpoint
    from tracks.lab.merging import Tensors


@options("models")
class Config(AnswerSettings, DeviceSettings, TagSettings):
    """Merge models into a new run of their stage."""

    tag = option("", "tag of the new run")
    source: Source = option("sft", "stage of the models", short="-i")
    models: str = option(
        "",
        "models as TAG or TAG@STEP, separated by commas, optionally with weights, but for a soup: facts:0.7,sums:0.3",
    )
    method: Literal["linear", "slerp", "task", "ties", "soup"] = option(
        "linear",
        "linear: mean of the weights; slerp: arc between two models; task: mean of the changes; "
        "ties: of the largest changes with the dominant sign; soup: greedy mean",
    )
    scale: float = option(1.0, "factor of the change from the parent, for task and ties")

    dev: str = option("", "tasks joined by | whose mean score chooses the models of a soup")

    def __post_init__(self) -> None:
        if not (self.tag and self.models):
            raise UserError("--models and --tag are needed, see --help")
        if bool(self.dev) != (self.method == "soup"):
            raise UserError("--dev names the tasks that choose a soup: give it with --method=soup alone")
        if self.method == "soup" and ":" in self.models:
            raise UserError("--method=soup chooses the weights itself: give --models without any")
        if self.scale != 1 and self.method not in ("task", "ties"):
            raise UserError("--scale is a factor of changes: use --method=task or ties")
        if self.method == "slerp" and self.models.count(",") != 1:
            raise UserError("--method=slerp merges two models: name two, or use another method")


def main(config: Config) -> None:
    from nanochat.checkpoint import MANIFEST, newest
    from tracks.lab import merging as merge

    stage = MODELS[config.source]
    home = stage_dir(stage, config.tag)
    earlier = newest(home)
    if earlier and "merge" not in earlier.manifest:
        raise UserError(f"{home} holds a run, use another --tag")
    outcome = Outcome.begin("merge", config.tag, config)
    found = merge.read_models(stage, config.models)
    models, weights = zip(*found.values(), strict=True)
    if not any(weights):
        raise UserError("--models: a merge needs a weight above 0")
    first = models[0]
    tensors = {name: model.model_tensors() for name, (model, _) in found.items()}
    for name, each in tensors.items():
        if bad := [part for part, tensor in each.items() if not tensor.isfinite().all()]:
            raise UserError(f"--models: {name} has weights that are not finite, such as {bad[0]}")
    if config.method == "soup":
        weights = list(merge.greedy_soup(tensors, partial(dev_score, config, first)).values())
    parent = merge.read_parent(*models) if config.method in merge.FROM_PARENT else None
    start = parent.model_tensors() if parent else None
    merged = merge.merge(tensors.values(), weights, config.method, start, config.scale)
    facts = {"method": config.method, "weights": weights, "parent": merge.origin(parent) if parent else None}
    merge.write_merge(config.tag, models, merged, facts)
    outcome.metrics = {"Weights": ", ".join(f"{weight:g}" for weight in weights), "Folder": f"{stage}/{config.tag}"}
    written = newest(home)
    assert written is not None
    outcome.add_artifact(written.path / MANIFEST)
    outcome.finish()


def dev_score(config: Config, like: "Checkpoint", weights: "Tensors") -> float:
    """Return the mean accuracy of a model with these weights in the development tasks."""
    from nanochat.evals.chat import evaluate_task
    from nanochat.models import build_model, config_of, tokenizer_of
    from nanochat.runtime import setup
    from tasks import open_tasks

    with setup(config.device_type, config.dtype) as runtime:
        model = build_model(config_of(like.manifest), runtime, like).eval().requires_grad_(False)
        model.load_state_dict(weights)
        tokenizer = tokenizer_of(like)
        tasks = open_tasks(config.dev, tokenizer=like.manifest["tokenizer"]["tag"])
        return fmean(evaluate_task(task, model, tokenizer, runtime, config).accuracy.value for task in tasks.values())


if __name__ == "__main__":
    run_script(main)
