"""Show what a model in reinforcement learning has answered, and what it earned.

python -m scripts.rollouts --tag=d8 --show 5
"""

from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.log import read_metrics
from nanochat.paths import stage_dir

WIDTH = 120  # of a line between questions


@dataclass(frozen=True)
class Config:
    """Show the samples of scripts.chat_rl: questions with their answers, the best first."""

    show: Count = option(5, "questions", group="samples", least=1)
    tag: str = option("d12", "run whose samples to show", group="run")
    step: Count = option(-1, "of training, -1: the last", group="samples", least=-1)


def main(config: Config) -> None:
    folder = stage_dir("chat_rl", config.tag)
    records = read_metrics(folder / "samples.jsonl")
    if not records:
        raise ValueError(f"there are no samples in {folder}: python -m scripts.chat_rl --tag={config.tag} makes them")
    steps = [record["step"] for record in records]
    step = steps[-1] if config.step < 0 else config.step
    if step not in steps:
        raise ValueError(f"--step={step}: the samples are of steps {steps[0]} to {steps[-1]}")
    for record in [record for record in records if record["step"] == step][: config.show]:
        print(f"== step {step}, question {record['example']} ".ljust(WIDTH, "="), record["prompt"], sep="\n")
        parts = record["answer"] if isinstance(record["answer"], list) else [{"text": record["answer"]}]
        print(f"\n-- right: {''.join(part['text'] for part in parts)}")
        for sample in sorted(record["samples"], key=lambda sample: -sample["reward"]):
            about = f"reward {sample['reward']:g}, advantage {sample['advantage']:+.3g}, {sample['tokens']} tokens"
            print(f"\n-- {about}, {sample['reason']}:\n{sample['text']}")
        print()


if __name__ == "__main__":
    run(main, Config)
