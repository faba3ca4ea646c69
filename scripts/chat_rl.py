"""Reinforcement learning: sample answers to a task's questions, and make those likelier that earned more.

python -m scripts.chat_rl --tag=d8 --task=GSM8K
torchrun --standalone --nproc_per_node=8 -m scripts.chat_rl -- --tag=d24 --task=GSM8K
"""

from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.inherit import RATE, SIDE, FineTune
from nanochat.log import MetricLog, print0, print_figures
from nanochat.stages import MODELS
from tasks import JUDGED, TASKS, pick

OBJECTIVE = {"group": "objective"}
SAMPLES, EVALUATION = {"group": "samples"}, {"group": "evaluation"}


@dataclass(frozen=True)
class Config(FineTune):
    """Improve a model at a task by rewards for what it samples. Settings that are None are the parent's."""

    source: str = option("sft", f"stage whose model to take: {', '.join(MODELS)}", group="run")
    task: str = option("GSM8K", "what to be good at: a task with a train and a test split", group="data")
    examples_per_step: Count = option(16, "questions, of all ranks", least=1, **SAMPLES)
    num_samples: Count = option(4, "answers to each, compared with each other", least=2, **SAMPLES)
    max_new_tokens: Count = option(64, "of an answer", least=1, unit="TOKENS", **SAMPLES)
    temperature: float = option(0.7, "at which they are drawn", least=0, **SAMPLES)
    top_k: Count = option(50, "likeliest tokens to draw from, 0: all", least=0, **SAMPLES)

    advantage: str = option("mean", "mean: reward less that of the group; std: in its standard deviations", **OBJECTIVE)
    policy_loss: str = option("plain", "plain, or clip: the ratio to the sampler's probability", **OBJECTIVE)
    kl: float = option(0.0, "cost of a nat between the model and its parent", least=0, **OBJECTIVE)
    init_lr_frac: float = option(0.015, "of these rates, that of the first step", **RATE)
    warmdown_ratio: float = option(1.0, "share of the run in which it falls", **RATE)
    warm_start: bool = option(False, "begin with the parent's momenta", group="optimizer")
    compile: bool = option(False, "compile the blocks: pays in long runs alone", group="device", **SIDE)

    eval_every: Count = option(60, "steps between scores; 0: at the ends; -1: none", least=-1, **EVALUATION)
    eval_examples: Count = option(400, "test questions for it, 0: all", least=0, **EVALUATION)
    eval_samples: Count = option(1, "answers to each: 1, the likeliest; more, drawn, for pass@k", least=1, **EVALUATION)
    save_every: Count = option(60, "steps between them; -1: only the last", group="checkpoints", least=-1, **SIDE)


def shown(state) -> str:
    return f"reward {state.notes['reward']:.3f}" if "reward" in state.notes else ""


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.engine import Engine
    from nanochat.evals.chat import Options, evaluate
    from nanochat.finetune import fine_tuning
    from nanochat.objectives import PolicyGradient, by_tokens
    from nanochat.restore import load_model
    from nanochat.rollouts import Rollouts, Sampling
    from nanochat.train import every

    name, *others = pick(config.task, JUDGED)
    if others:
        raise ValueError(f"--task={config.task}: name one task, of {', '.join(JUDGED)}")
    if config.total_batch_size:
        raise ValueError("--total-batch-size is not for samples: take --examples-per-step and --num-samples")
    rows = config.examples_per_step * config.num_samples
    with fine_tuning("chat_rl", MODELS[config.source], config, rows) as tuning:
        words = tuning.about["tokenizer"]["tag"]  # to spell
        task, test = (TASKS[name](split, tokenizer=words) for split in ("train", "test"))
        loaded, samples = (tuning.tokenizer, tuning.runtime), MetricLog(tuning.folder, name="samples")
        samples.resume(tuning.begun.step if tuning.begun else -1)
        engine, model = Engine(tuning.model, tuning.tokenizer), tuning.model
        drawn = {what: getattr(config, what) for what in ("max_new_tokens", "temperature", "top_k")}
        sampling = Sampling(config.examples_per_step, config.num_samples, **drawn)
        about = {"advantage": config.advantage, "seed": config.seed, "epochs": config.epochs}
        about |= {
            "context": tuning.settings.max_seq_len,
            "record": samples.write,
        }
        source = Rollouts(task, engine, *loaded, sampling, **about)
        parent = [tuning.about["parent"][what] for what in ("stage", "tag", "step")]
        reference = load_model(*parent, tuning.runtime)[0] if config.kl else None
        objective = PolicyGradient(config.policy_loss, config.kl, reference)

        def tell(state) -> None:
            if source.metrics:  # else a run goes on, which has told of this step
                found = source.metrics | {"rl/logprob_gap": objective.take_gap(tuning.runtime)}
                state.notes["reward"] = 0.9 * state.notes.get("reward", found["rl/reward"]) + 0.1 * found["rl/reward"]
                print_figures(state.step, found)
                tuning.log.write("rl", state.step, **found)

        drawn |= {"temperature": config.temperature * (config.eval_samples > 1), "num_samples": config.eval_samples}
        options = Options(**drawn, max_problems=config.eval_examples)

        def score(state) -> None:
            engine.refresh()
            found = evaluate(test, model, engine, *loaded, options, label=name).pass_at
            state.notes["after"] = {f"pass@{k}": list(one) for k, one in found.items()}
            state.notes.setdefault("before", state.notes["after"])
            print0(f"step {state.step:05d} | " + " | ".join(f"pass@{k} {one.value:.4f}" for k, one in found.items()))
            tuning.log.write("eval", state.step, **{f"eval/pass@{k}": one.value for k, one in found.items()})

        hooks = [every(1, tell, at_stop=True)]
        hooks += [every(config.eval_every, score, at_start=True)] * (config.eval_every >= 0)
        origin = lambda: {name: {"rows": len(task), "files": task.hashes()}}  # noqa: E731
        split = by_tokens(tuning.settings.max_seq_len)
        state = tuning.train(source, objective, hooks, origin, split=split, shown=shown)
        facts = {"Task": name, "Training questions": len(task), "Number of iterations": state.step}
        facts["Reward, a moving average"] = state.notes.get("reward", "n/a")
        for when in ("before", "after"):
            for what, (value, stderr) in state.notes.get(when, {}).items():
                facts[f"{name} {what} {when}"] = {"value": value, "stderr": stderr, "format": ".4f"}
        tuning.finish(state, facts)


if __name__ == "__main__":
    run(main, Config)
