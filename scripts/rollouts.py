"""Show the sampled answers of the last reinforcement learning step, with their rewards.

python -m scripts.rollouts --tag=d8 --show 5
"""

from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.log import print_line, read_metrics
from nanochat.paths import stage_dir
from nanochat.settings import TagSettings


@dataclass(frozen=True)
class Config(TagSettings):
    """Show the samples of scripts.chat_rl: questions with their answers, the best first."""

    show: Count = option(5, "number of questions to show", group="samples", least=1)


def main(config: Config) -> None:
    folder = stage_dir("chat_rl", config.tag)
    records = read_metrics(folder / "samples.jsonl")
    if not records:
        raise ValueError(f"there are no samples in {folder}: python -m scripts.chat_rl --tag={config.tag} makes them")
    step = records[-1]["step"]
    last = [record for record in records if record["step"] == step]
    for record in last[: config.show]:
        print_line(f"== step {step}, question {record['example']}")
        print_line(record["prompt"])
        print_line(f"\n-- reference answer: {record['answer']}")
        for sample in sorted(record["samples"], key=lambda sample: -sample["reward"]):
            print_line(
                f"\n-- reward {sample['reward']:g}, advantage {sample['advantage']:+.3g}, {sample['tokens']} tokens:"
            )
            print_line(sample["text"])
        print_line()


if __name__ == "__main__":
    run(main, Config)
