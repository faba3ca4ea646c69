"""Merge models with the same parent into one, without training.

python -m scripts.merge --models=facts,sums --tag=both
python -m scripts.merge --models=facts,sums --method=task --scale=2 --tag=both
python -m scripts.merge --models=d8-1,d8-2,d8-3 --method=soup --dev="World-Facts|World-Sums" --tag=soup
"""

from statistics import fmean
from typing import Literal

from nanochat.config import changed, option, options, run
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import AnswerSettings, DeviceSettings, TagSettings
from nanochat.stages import MODELS, Source
from tasks import JUDGED, pick


@options("models")
class Config(AnswerSettings, DeviceSettings, TagSettings):
    """Merge models into a new run of their stage."""

    tag = changed("", text="tag of the new run")
    source: Source = option("sft", "stage of the models", short="-i")
    models: str = option("", "models as TAG or TAG@STEP, with commas between; perhaps with weights: facts:0.7,sums:0.3")
    method: Literal["linear", "slerp", "task", "ties", "soup"] = option(
        "linear", "mean, arc between two models, mean of changes, largest changes with one sign, or a greedy soup"
    )
    scale: float = option(1.0, "factor of the change from the parent, for task and ties")
    density: float = option(0.2, "share of each model's changes that ties keeps, above 0")
    dev: str = option("", "tasks joined by | whose mean score chooses the models of a soup")

    def __post_init__(self):
        if not (self.tag and self.models):
            raise ValueError("--models and --tag are needed, see --help")
        if bool(self.dev) != (self.method == "soup"):
            raise ValueError("--dev names the tasks that choose a soup: give it with --method=soup alone")
        if not 0 < self.density <= 1:
            raise ValueError(f"--density={self.density:g} has to be above 0, and at most 1")
        if self.scale != 1 and self.method not in ("task", "ties"):
            raise ValueError("--scale is a factor of changes: take --method=task or ties")
        pick(self.dev, JUDGED)  # an unknown task is an error before a model is read


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.checkpoint import MANIFEST, build_model, steps, tokenizer_of
    from nanochat.engine import Engine
    from nanochat.evals.chat import evaluate_task
    from nanochat.lab import merge
    from nanochat.models import config_of
    from nanochat.runtime import setup
    from tasks import open_tasks

    stage = MODELS[config.source]
    # Before a soup is evaluated.
    if steps(stage_dir(stage, config.tag)):
        raise ValueError(f"{stage_dir(stage, config.tag)} holds a run, take another --tag")
    outcome = Outcome.begin("merge", config.tag, config)
    found = merge.read_models(stage, config.models)
    models, weights = zip(*found.values(), strict=True)
    if not any(weights):
        raise ValueError("--models: one of the weights has to be above 0")
    if config.method == "slerp" and len(models) != 2:
        raise ValueError(f"--method=slerp merges two models, not {len(models)}")
    if config.method == "soup" and ":" in config.models:
        raise ValueError("--method=soup chooses the weights: name the models without weights")
    tensors = {name: model.model_tensors() for name, (model, _) in found.items()}
    first = models[0]
    if config.method == "soup":
        with setup(config.device_type, config.dtype) as runtime:
            model = build_model(config_of(first.manifest), runtime, first).eval().requires_grad_(False)
            tokenizer = tokenizer_of(first)
            engine = Engine(model, tokenizer)
            tasks = open_tasks(config.dev, tokenizer=first.manifest["tokenizer"]["tag"])

            def score(weights: merge.Tensors) -> float:
                """Return the mean accuracy above guessing in the development tasks."""
                model.load_state_dict(weights)
                engine.refresh()
                scores = [evaluate_task(task, model, engine, tokenizer, runtime, config) for task in tasks.values()]
                return fmean(one.accuracy.centered(one.baseline).value for one in scores)

            trials = merge.greedy_soup(tensors, score)
        outcome.tables.append(table_of("Soup", "Model|Alone:.4f|In the soup:.4f", trials))
        together = {name: score for name, _, score in trials}
        weights = [float(together[name] is not None) for name in tensors]
    parent = merge.read_parent(first) if merge.METHODS[config.method].from_parent else None
    before = parent and parent.model_tensors()
    merged = merge.merge(tensors.values(), weights, config.method, before, config.scale, config.density)
    facts = {"method": config.method, "weights": weights, "parent": parent and merge.origin(parent)}
    folder = merge.write_merge(config.tag, models, merged, facts)
    outcome.metrics = {"Weights": ", ".join(f"{weight:g}" for weight in weights)}
    outcome.add_artifact(folder / f"step_{first.step:06d}" / MANIFEST)
    outcome.show()
    outcome.write()
    print0(f"merge: {folder}, step {first.step:,}")


if __name__ == "__main__":
    run(main, Config)
