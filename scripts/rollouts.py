"""Show the sampled answers of the last reinforcement learning step, with their rewards, or make pairs of all answers.

python -m scripts.rollouts --tag=d8 --show 5
python -m scripts.rollouts --tag=d8 --pairs=pairs.jsonl
"""

from operator import itemgetter
from pathlib import Path

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print_line, read_metrics
from nanochat.paths import stage_dir, write_jsonl
from nanochat.registry import OPTIONS, load
from nanochat.settings import TagSettings


@options("samples")
class Config(TagSettings):
    """Show the samples of scripts.chat_rl: questions with their answers, the best first."""

    show: Count = option(5, "number of questions to show", least=1)
    pairs: str = option("", "write pairs of a better and a worse answer to this file, for tracks.preferences.train")
    pairs_per_prompt: Count = option(1, "maximum number of pairs per question", least=1)


def main(config: Config) -> None:
    folder = stage_dir("chat_rl", config.tag)
    records = read_metrics(folder / "samples.jsonl")
    if not records:
        raise UserError(f"there are no samples in {folder}: python -m scripts.chat_rl --tag={config.tag} makes them")
    if config.pairs:
        pairs = load(OPTIONS, "--pairs")(records, config.pairs_per_prompt)
        write_jsonl(Path(config.pairs), pairs)
        print_line(f"{config.pairs}: {len(pairs):,} pairs")
        return
    step = records[-1]["step"]
    last = [record for record in records if record["step"] == step]
    for record in last[: config.show]:
        form = "== step {step}, question {example}\n{prompt}\n\n-- reference answer: {answer}"
        print_line(form.format_map(record))
        for sample in sorted(record["samples"], key=itemgetter("reward"), reverse=True):
            form = "\n-- reward {reward:g}, advantage {advantage:+.3g}, {tokens} tokens:\n{text}"
            print_line(form.format_map(sample))
        print_line()


if __name__ == "__main__":
    run_script(main)
