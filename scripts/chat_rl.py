"""Reinforcement learning: sample answers to a task's questions, and make those likelier that earned more.

python -m scripts.chat_rl --tag=d8 --task=GSM8K
torchrun --standalone --nproc_per_node=8 -m scripts.chat_rl -- --tag=d24 --task=GSM8K
"""

from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.inherit import FineTune
from nanochat.log import MetricLog, print0
from nanochat.stages import MODELS
from tasks import JUDGED, TASKS, pick

RATE = {"group": "optimizer", "least": 0}
OBJECTIVE = {"group": "objective"}
SAMPLES, EVALUATION = {"group": "samples"}, {"group": "evaluation"}


@dataclass(frozen=True)
class Config(FineTune):
    """Improve a model at a task by rewards for what it samples. Settings not given are the parent's."""

    source: str = option("sft", f"stage whose model to take: {', '.join(MODELS)}", group="run")
    task: str = option("GSM8K", "what to be good at: a task with a train and a test split", group="data")
    num_epochs: float = option(1.0, "of its training questions, if no steps are given", group="horizon", least=0)
    num_iterations: Count = option(-1, "steps", group="horizon", unit="STEPS")

    examples_per_step: Count = option(16, "questions, of all ranks", least=1, **SAMPLES)
    num_samples: Count = option(4, "answers to each, compared with each other", least=2, **SAMPLES)
    max_new_tokens: Count = option(64, "of an answer", least=1, unit="TOKENS", **SAMPLES)
    temperature: float = option(0.7, "at which they are drawn", least=0, **SAMPLES)
    top_k: Count = option(50, "likeliest tokens to draw from, 0: all", least=0, **SAMPLES)

    advantage: str = option("mean", "mean: reward less that of the group; std: in its standard deviations", **OBJECTIVE)
    policy_loss: str = option("plain", "plain, or clip: the ratio to the sampler's probability", **OBJECTIVE)
    kl: float = option(0.0, "cost of a nat between the model and its parent", least=0, **OBJECTIVE)
    init_lr_frac: float = option(0.05, "of these rates, that of the first step", **RATE)
    warmdown_ratio: float = option(1.0, "share of the run in which it falls", **RATE)
    warm_start: bool = option(False, "begin with the parent's momenta", group="optimizer")
    compile: bool = option(False, "compile the blocks: pays in long runs alone", group="device", may_change=True)

    eval_every: Count = option(60, "steps between scores; 0: at the ends; -1: none", least=-1, **EVALUATION)
    eval_examples: Count = option(400, "test questions for it, 0: all", least=0, **EVALUATION)
    eval_samples: Count = option(
        1, "answers to each: 1, the likeliest; or more, drawn, for pass@k", least=1, **EVALUATION
    )
    save_every: Count = option(
        60, "steps between them; -1: only the last", group="checkpoints", least=-1, may_change=True
    )


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.engine import Engine
    from nanochat.eval_chat import Options, evaluate
    from nanochat.finetune import fine_tuning
    from nanochat.loop import every
    from nanochat.objectives import PolicyGradient
    from nanochat.restore import load_model
    from nanochat.rollouts import Rollouts, Sampling

    names = pick(config.task, JUDGED)
    if len(names) != 1:
        raise ValueError(f"--task={config.task}: name one task, of {', '.join(JUDGED)}")
    task, test = (TASKS[names[0]](split) for split in ("train", "test"))
    with fine_tuning("chat_rl", MODELS[config.source], config) as run:
        engine, samples = Engine(run.model, run.tokenizer), MetricLog(run.folder, name="samples")
        samples.rewind(run.begun.step if run.begun else -1)
        drawn = {name: getattr(config, name) for name in ("max_new_tokens", "temperature", "top_k")}
        sampling = Sampling(config.examples_per_step, config.num_samples, **drawn)
        about = {"advantage": config.advantage, "seed": config.seed, "epochs": config.num_epochs}
        source = Rollouts(task, engine, run.tokenizer, sampling, run.runtime, write=samples.write, **about)
        parent = [run.about["parent"][what] for what in ("stage", "tag", "step")]
        reference = load_model(*parent, run.runtime)[0] if config.kl else None
        objective = PolicyGradient(config.policy_loss, config.kl, reference)

        def tell(state) -> None:
            if source.told:  # else a run goes on, which has told of this step
                found = source.told | {"rl/logprob_gap": objective.take_gap(run.runtime)}
                state.notes["reward"] = 0.9 * state.notes.get("reward", found["rl/reward"]) + 0.1 * found["rl/reward"]
                print0(f"step {state.step:05d} | {' | '.join(f'{name} {value:.3g}' for name, value in found.items())}")
                run.log.write(step=state.step, **found)

        drawn |= {"temperature": config.temperature * (config.eval_samples > 1), "num_samples": config.eval_samples}
        options = Options(**drawn, max_problems=config.eval_examples)

        def score(state) -> None:
            engine.refresh()
            found = evaluate(test, run.model, engine, run.tokenizer, run.runtime, options, label=names[0]).pass_at
            state.notes["after"] = {f"pass@{k}": list(one) for k, one in found.items()}
            state.notes.setdefault("before", state.notes["after"])
            print0(f"step {state.step:05d} | " + " | ".join(f"pass@{k} {one.value:.4f}" for k, one in found.items()))
            run.log.write(step=state.step, **{f"eval/pass@{k}": one.value for k, one in found.items()})

        hooks = [every(1, tell, at_stop=True)]
        hooks += [every(config.eval_every, score, at_start=True)] * (config.eval_every >= 0)
        state = run.train(source, objective, config.num_iterations, hooks)
        facts = {"Task": names[0], "Training questions": len(task), "Number of iterations": state.step}
        facts["Reward, a moving average"] = state.notes.get("reward", "n/a")
        for when in ("before", "after"):
            for what, (value, stderr) in state.notes.get(when, {}).items():
                facts[f"{names[0]} {what} {when}"] = {"value": value, "stderr": stderr, "format": ".4f"}
        run.finish(state, facts)


if __name__ == "__main__":
    run(main, Config)
