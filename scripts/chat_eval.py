"""How many problems of each task a model solves that can chat, or is to learn it.

python -m scripts.chat_eval --source=sft --tag=d8 --tasks="ARC-Easy|GSM8K"
python -m scripts.chat_eval -i sft -a "GSM8K|AQUA"
"""

from dataclasses import asdict, dataclass, fields

from nanochat.config import Count, option, run
from nanochat.log import MetricLog, print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.stages import STAGES
from tasks import JUDGED, open_tasks
from tasks.common import pick

SOURCES = {stage.source: stage for stage in STAGES if stage.source}


@dataclass(frozen=True)
class Config:
    """Evaluate a model on tasks."""

    source: str = option("sft", f"stage whose model to take: {', '.join(SOURCES)}", group="model", short="-i")
    tasks: str = option("", f"joined by |, of {', '.join(JUDGED)}; empty: those of ChatCORE", group="tasks", short="-a")
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device")
    temperature: float = option(0.0, "of what is written; 0: the likeliest token", group="samples", least=0)
    max_new_tokens: Count = option(512, "of an answer", group="samples", least=1, unit="TOKENS")
    num_samples: Count = option(1, "answers to each problem, for pass@k", group="samples", least=1)
    top_k: Count = option(50, "likeliest tokens to draw from, 0: all", group="samples", least=0)
    batch_size: Count = option(64, "rows at once where letters are picked", group="device", least=1)
    slots: Count = option(
        0, "rows at once where answers are written, 0: as many as pay", group="device", least=0, in_card=False
    )
    tag: str = option("d12", "run whose model to take", group="model", in_card=False)
    step: Count = option(-1, "its checkpoint, -1: the newest", group="model", least=-1)
    max_problems: Count = option(0, "of each task, 0: all", group="tasks", least=0)
    unsafe_exec: bool = option(False, "run programs even where they cannot be contained", group="tasks")
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device")
    seed: Count = option(0, "of what is written", group="samples", least=0, in_card=False)
    run: str = option("dummy", "name for W&B; dummy: do without", group="run", in_card=False)

    def __post_init__(self):
        if self.source not in SOURCES:
            raise ValueError(f"--source={self.source} is not one of {', '.join(SOURCES)}")
        if self.num_samples > 1 and not self.temperature:
            raise ValueError(f"--num-samples={self.num_samples} would all be the same, add --temperature=1")
        pick(self.tasks, JUDGED)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.engine import Engine
    from nanochat.evals.chat import Options, core_of, evaluate
    from nanochat.restore import load_model
    from nanochat.runtime import setup

    stage = SOURCES[config.source]
    outcome = Outcome.begin(stage.name, config.tag, config)
    options = Options(**{field.name: getattr(config, field.name) for field in fields(Options)})
    with setup(config.device_type, config.dtype) as runtime:
        step = None if config.step < 0 else config.step
        model, tokenizer, checkpoint = load_model(stage.parent, config.tag, step, runtime)
        tasks = open_tasks(config.tasks, config.unsafe_exec, checkpoint.manifest["tokenizer"]["tag"])
        if not tasks:
            raise ValueError(
                "no task has its files here, see `python -m scripts.prepare --tasks=…` or set NANOCHAT_HUB"
            )
        engine = Engine(model, tokenizer, config.slots)
        scores, rows = {}, []
        for name, task in tasks.items():
            path = stage_dir(stage.name, config.tag) / f"{name}.jsonl"
            score = scores[name] = evaluate(task, model, engine, tokenizer, runtime, options, name, path)
            rows += [[name, k, *found] for k, found in score.pass_at.items() if config.num_samples > 1]
            print0(f"{name}: {score.accuracy.value:.4f} ± {score.accuracy.stderr:.4f}, guessing {score.baseline:.2f}")
            if runtime.rank == 0:
                outcome.add_artifact(path)
        found = {name: score.accuracy for name, score in scores.items()}
        for core, mean in core_of(scores).items():
            found[core] = mean
            print0(f"{core}: {mean.value:.4f} ± {mean.stderr:.4f}")
        outcome.metrics |= {name: {**one._asdict(), "format": ".4f"} for name, one in found.items()}
        outcome.metrics["Step"] = checkpoint.step
        if rows:
            columns = [["Task", ""], ["k", "d"], ["pass@k", ".4f"], ["Standard error", ".4f"]]
            outcome.tables.append({"title": "One of k answers is right", "columns": columns, "rows": rows})
        if runtime.rank == 0:
            with MetricLog(stage_dir(stage.name, config.tag), config.run, asdict(config)) as log:
                log.write("tasks", checkpoint.step, **{name: one.value for name, one in found.items()})
            outcome.write()


if __name__ == "__main__":
    run(main, Config)
