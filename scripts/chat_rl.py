"""Reinforcement learning: sample answers to a task's questions, and make those likelier that earned more.

python -m scripts.chat_rl --tag=d8 --task=GSM8K
torchrun --standalone --nproc_per_node=8 -m scripts.chat_rl -- --tag=d24 --task=GSM8K
"""

from dataclasses import dataclass

from nanochat.config import Count, changed, option, run
from nanochat.log import MetricLog, print0, print_figures
from nanochat.settings import (
    CheckpointSettings,
    EvaluationSettings,
    FineTuneSettings,
    OptimizerSettings,
    TrainingDeviceSettings,
)
from tasks import JUDGED, TASKS, pick

OBJECTIVE = {"group": "objective"}
SAMPLES, EVALUATION = {"group": "samples"}, {"group": "evaluation"}


@dataclass(frozen=True)
class Config(FineTuneSettings):
    """Improve a model at a task by rewards for what it samples. Settings that are None are the parent's."""

    source: str = changed(FineTuneSettings, "source", "sft")
    task: str = option("GSM8K", "what to be good at: a task with a train and a test split", group="data")
    examples_per_step: Count = option(16, "questions, of all ranks", least=1, **SAMPLES)
    num_samples: Count = option(4, "answers to each, compared with each other", least=2, **SAMPLES)
    max_new_tokens: Count = option(64, "of an answer", least=1, unit="TOKENS", **SAMPLES)
    temperature: float = option(0.7, "at which they are drawn", least=0, **SAMPLES)
    top_k: Count = option(50, "likeliest tokens to draw from, 0: all", least=0, **SAMPLES)

    advantage: str = option("mean", "mean: reward less that of the group; std: in its standard deviations", **OBJECTIVE)
    policy_loss: str = option("plain", "plain, or clip: the ratio to the sampler's probability", **OBJECTIVE)
    kl: float = option(0.0, "cost of a nat between the model and its parent", least=0, **OBJECTIVE)
    init_lr_frac: float = changed(FineTuneSettings, "init_lr_frac", 0.015)
    warmdown_ratio: float = changed(OptimizerSettings, "warmdown_ratio", 1.0)
    warm_start: bool = changed(FineTuneSettings, "warm_start", False)
    compile: bool = changed(TrainingDeviceSettings, "compile", False)

    eval_every: Count = changed(EvaluationSettings, "eval_every", 60)
    eval_examples: Count = option(400, "test questions for it, 0: all", least=0, **EVALUATION)
    eval_samples: Count = option(1, "answers to each: 1, the likeliest; more, drawn, for pass@k", least=1, **EVALUATION)
    save_every: Count = changed(CheckpointSettings, "save_every", 60)


def shown(state) -> str:
    return f"reward {state.notes['reward']:.3f}" if "reward" in state.notes else ""


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.checkpoint import load_model
    from nanochat.engine import Engine
    from nanochat.evals.chat import Options, evaluate_task
    from nanochat.objectives import PolicyGradient, by_tokens
    from nanochat.rollouts import Rollouts, Sampling
    from nanochat.run import training
    from nanochat.train import Evaluation

    name, *others = pick(config.task, JUDGED)
    if others:
        raise ValueError(f"--task={config.task}: name one task, of {', '.join(JUDGED)}")
    if config.total_batch_size:
        raise ValueError("--total-batch-size is not for samples: take --examples-per-step and --num-samples")
    rows = config.examples_per_step * config.num_samples
    with training("chat_rl", config, rows=rows) as trainer:
        words = trainer.tokenizer_tag  # to spell
        task, test = (TASKS[name](split, tokenizer=words) for split in ("train", "test"))
        loaded, samples = (trainer.tokenizer, trainer.runtime), MetricLog(trainer.folder, name="samples")
        samples.resume(trainer.resumed.step if trainer.resumed else -1)
        engine, model = Engine(trainer.model, trainer.tokenizer), trainer.model
        drawn = {what: getattr(config, what) for what in ("max_new_tokens", "temperature", "top_k")}
        sampling = Sampling(config.examples_per_step, config.num_samples, **drawn)
        about = {"advantage": config.advantage, "seed": config.seed, "epochs": config.epochs}
        about |= {"context": trainer.config.max_seq_len, "record": samples.write}
        source = Rollouts(task, engine, *loaded, sampling, **about)
        parent = [trainer.start.record["parent"][what] for what in ("stage", "tag", "step")]
        reference = load_model(*parent, trainer.runtime)[0] if config.kl else None
        objective = PolicyGradient(config.policy_loss, config.kl, reference)

        def follow(state) -> None:
            reward = source.metrics["rl/reward"]
            state.notes["reward"] = 0.9 * state.notes.get("reward", reward) + 0.1 * reward
            print_figures(state.step, source.metrics)

        drawn |= {"temperature": config.temperature * (config.eval_samples > 1), "num_samples": config.eval_samples}
        options = Options(**drawn, max_problems=config.eval_examples)

        def score(state) -> None:
            engine.refresh()
            found = evaluate_task(test, model, engine, *loaded, options, label=name).pass_at
            state.notes["after"] = {f"pass@{k}": list(one) for k, one in found.items()}
            state.notes.setdefault("before", state.notes["after"])
            print0(f"step {state.step:05d} | " + " | ".join(f"pass@{k} {one.value:.4f}" for k, one in found.items()))
            trainer.log.write("eval", state.step, **{f"eval/pass@{k}": one.value for k, one in found.items()})

        state = trainer.fit(
            source,
            objective,
            [Evaluation(config.eval_every, score, at_start=True)],
            tasks=lambda: {name: {"rows": len(task), "files": task.hashes()}},
            split=by_tokens(trainer.config.max_seq_len),
            after_step=[follow],
            note=shown,
        )
        facts = {"Task": name, "Training questions": len(task), "Number of iterations": state.step}
        facts["Reward, a moving average"] = state.notes.get("reward", "n/a")
        for when in ("before", "after"):
            for what, (value, stderr) in state.notes.get(when, {}).items():
                facts[f"{name} {what} {when}"] = {"value": value, "stderr": stderr, "format": ".4f"}
        trainer.finish(state, facts)


if __name__ == "__main__":
    run(main, Config)
