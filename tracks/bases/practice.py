"""Post-training on a public model, with its scores before and after: SFT, RL, and DPO on its own answers.

python -m tracks.bases.bring --from=hub:HuggingFaceTB/SmolLM2-135M-Instruct --tag=smol --source=base
python -m tracks.bases.practice --model-tag=smol                    two to three hours on two cores
python -m tracks.bases.practice --model-tag=smol --kinds=dpo        one of the three; the others can follow

Each begins with the same model. SFT learns grade-school mathematics and the counting of letters. RL learns to follow
constraints that a program checks. DPO learns the same from pairs of answers that the model itself has given. Each time
the same questions are asked, and tasks for which nothing was learned. Run the same command again to resume.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import report_step, run_series, training_step
from nanochat.paths import base_dir, read_jsonl, saved_steps, stage_dir
from nanochat.settings import TagSettings
from nanochat.stages import MODELS, Source, core_stage
from tasks import JUDGED, TASKS, find_task
from tasks.mixing import absolute_mixture, local_files, parse_mixture

BATCH = "--total-batch-size=8192 --device-batch-size=4 --max-seq-len=512"
HELD_OUT = 0.2  # of the pairs
ANSWERS = "--temperature=1 --max-new-tokens=96 --max-seq-len=512 --device-batch-size=16 --examples-per-step=16"


@options("practice")
class Config(TagSettings):
    """Fine-tune a public model, reinforce it, and train it on preferences, with scores before and after."""

    tag = option("practice", "name of the series, and of its runs")
    model_tag: str = option("smol", "tag of a model that tracks.bases.bring has brought in with --source=base")
    kinds: str = option("sft,rl,dpo", "kinds of post-training, some of sft, rl, dpo, separated by commas")
    task: str = option("Alpaca-Constrained", "task of RL and DPO, with a train and a test split")
    mixture: str = option("GSM8K%70,SpellingBee%30", "tasks of SFT, with their shares of the assistant's tokens")
    sft_steps: Count = option(44, "steps of SFT, of 8,192 tokens", least=1)
    rl_steps: Count = option(20, "steps of RL, of 16 questions with 8 answers each", least=1)
    sampling_steps: Count = option(40, "steps that answer 16 questions four times, for the pairs of DPO", least=1)
    dpo_epochs: Count = option(2, "passes of DPO over its pairs", least=1)
    problems: Count = option(400, "questions of each task (0: all)")
    unlearned: str = option(
        "hellaswag_zeroshot,lambada_openai,openbook_qa,winogrande",
        "CORE's tasks that show what was lost (empty: none is asked)",
    )
    out: str = option("", "file for the report card (default: TAG.md in the current folder)", in_card=False)

    def __post_init__(self) -> None:
        if not all(kind in KINDS for kind in self.chosen):
            raise UserError(f"--kinds={self.kinds}: choose some of {', '.join(KINDS)}, separated by commas")

    @property
    def chosen(self) -> list[str]:
        return [kind.strip() for kind in self.kinds.split(",")]

    @property
    def tasks(self) -> list[str]:
        """The tasks that are asked: of the usual mixture and of this one, those with a verdict, and that of RL."""
        learned = [name.partition("~")[0] for one in parse_mixture(self.mixture, TASKS) for name in one.sources]
        found = dict.fromkeys(["GSM8K", "SpellingBee", *learned, find_task(self.task, JUDGED).partition("~")[0]])
        return [name for name in found if name in JUDGED]

    @property
    def base(self) -> str:
        """The stage of the model that all kinds begin with."""
        return f"bases/{self.model_tag}"

    @property
    def parent(self) -> list[str]:
        """The flags that name this model."""
        return ["--source=base", f"--model-tag={self.model_tag}"]


def scores(config: Config, source: Source, tag: str, parent: str) -> Iterator[Step]:
    """Yield the evaluations of the model of a stage."""
    chat = ["scripts.chat_eval", f"--source={source}", f"--tag={tag}", f"--out-tag={config.tag}"]
    tasks = ",".join(config.tasks)
    chat += [f"--tasks={tasks}", f"--max-problems={config.problems}", "--max-new-tokens=160"]
    yield Step(f"{source}-chat", chat, output=f"chat_eval_{source}/{config.tag}", parent=parent)
    if not config.unlearned:
        return
    core = ["scripts.base_eval", f"--source={source}", f"--tag={tag}", f"--out-tag={config.tag}"]
    core += [f"--tasks={config.unlearned}", f"--max-per-task={config.problems or -1}"]
    yield Step(f"{source}-core", core, output=f"{core_stage(source)}/{config.tag}", parent=parent)


def sft(config: Config) -> Iterator[Step]:
    """Yield the training of SFT."""
    flags = [*config.parent, "--no-warm-start", f"--mixture={absolute_mixture(config.mixture)}", *BATCH.split()]
    flags += [f"--num-iterations={config.sft_steps}"]
    flags += ["--eval-every=-1", "--eval-metrics-every=-1", "--save-every=20"]
    step = training_step("sft", "scripts.chat_sft", flags, config.tag, stage="chat_sft", parent=config.base)
    yield replace(step, local=local_files(parse_mixture(config.mixture, TASKS)))  # other conversations repeat it


def rl(config: Config) -> Iterator[Step]:
    """Yield the training of RL."""
    flags = [*config.parent, f"--task={config.task}", *ANSWERS.split(), "--eval-every=-1", "--save-every=10"]
    flags += [f"--num-iterations={config.rl_steps}", "--num-samples=8", "--init-lr-frac=0.3"]
    yield training_step("rl", "scripts.chat_rl", flags, config.tag, stage="chat_rl", parent=config.base)


def dpo(config: Config) -> Iterator[Step]:
    """Yield the answers of the model, the pairs that are chosen from them, and the training of DPO."""
    tag = config.tag
    # At a rate of 0 it only samples: all answers are those of the model that was brought in.
    flags = [*config.parent, f"--task={config.task}", *ANSWERS.split(), "--eval-every=-1", "--save-every=10"]
    flags += [f"--num-iterations={config.sampling_steps}", "--num-samples=4", "--init-lr-frac=0", "--seed=7"]
    answers = f"{tag}-answers"
    yield training_step("answers", "scripts.chat_rl", flags, answers, stage="chat_rl", parent=config.base)
    pairs = base_dir() / "practice" / tag / "pairs.jsonl"
    choose = ["scripts.rollouts", f"--tag={answers}", f"--pairs={pairs}", "--pairs-per-prompt=2"]
    yield Step("pairs", choose, parent=f"chat_rl/{answers}")
    flags = [
        *config.parent,
        f"--pairs={pairs}",
        f"--held-out={HELD_OUT}",
        f"--num-epochs={config.dpo_epochs}",
        "--init-lr-frac=0.1",
    ]
    learned = int((1 - HELD_OUT) * sum(1 for _ in read_jsonl(pairs, dict)))
    flags += [f"--examples-per-step={min(16, max(learned // 2, 1))}"]  # two steps in a pass, if there are few pairs
    flags += ["--max-seq-len=512", "--eval-metrics-every=-1"]
    step = training_step("dpo", "tracks.preferences.train", flags, tag, stage="chat_dpo", parent=config.base)
    yield replace(step, local=[str(pairs)])  # other pairs repeat it


KINDS: Mapping[Source, Callable[[Config], Iterator[Step]]] = MappingProxyType({"sft": sft, "rl": rl, "dpo": dpo})


def steps(config: Config) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield from scores(config, "base", config.model_tag, config.base)
    for kind, training in KINDS.items():
        if kind in config.chosen:
            yield from training(config)
            yield from scores(config, kind, config.tag, f"chat_{kind}/{config.tag}")
    yield Step("gains", ["tracks.bases.gains", f"--tag={config.tag}"])
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    find_task(config.task, JUDGED)
    parse_mixture(config.mixture, TASKS)  # an unknown task is found before the first evaluation
    brought = stage_dir("bases", config.model_tag) / "outcome.json"
    if not (brought.exists() and saved_steps(stage_dir(MODELS["base"], config.model_tag))):
        raise UserError(
            f"--model-tag={config.model_tag} names no base model: bring one in with python -m tracks.bases.bring "
            f"--from=... --tag={config.model_tag} --source=base"
        )
    run_series("practice", config.tag, steps(config))


if __name__ == "__main__":
    run_script(main)
