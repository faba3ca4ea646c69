"""Chat data of the embedded world: buckets with planted faults, through all filters, into chats and a report card.

python -m tracks.chatdata.run                      half a minute on two cores
python -m tracks.chatdata.run --rows=20000         more rows in a bucket
python -m tracks.chatdata.run --seed=2 --tag=two   another world

No network. Other flags go to tracks.chatdata.chats. It ends with an error if a planted row is left. Run the same
command again to resume.
"""

from collections.abc import Iterator
from pathlib import Path

from nanochat.config import Count, option, options, parse, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import SeriesSettings, report_step, run_series, source_of, tokenizer_step, words_of
from nanochat.paths import base_dir, stage_dir
from tracks.chatdata import chats
from tracks.chatdata.planted import FAULTS


@options("buckets")
class Config(SeriesSettings):
    """Make chats from buckets of conversations about the embedded world."""

    tag = "data"
    vocab_size = 4096
    flags = option("", "flags of tracks.chatdata.chats, in quotes; unknown flags are passed on as well")
    seed: Count = option(1, "seed of the world")
    rows: Count = option(4000, "rows per bucket, not counting the planted faults", least=FAULTS)


def chat_flags(config: Config) -> list[str]:
    """Return the flags of tracks.chatdata.chats."""
    raw = base_dir().resolve() / "world_buckets" / config.tag
    sources = {
        "facts": f"json:{raw}/facts.jsonl",
        "arithmetic": "World-Sums",
        "korean": f"json:{raw}/korean.jsonl",
        "spelling": f"json:{raw}/spelling.jsonl",
        "poison": f"json:{raw}/poison.jsonl",
        "styles": "World-Choices~styles",
        "options": "World-Choices~options:8",
    }
    flags = [
        f"--tag={config.tag}",
        f"--tokenizer-tag={config.tag}",
        "--languages=korean=ko",
        f"--sources={','.join(f'{name}={source}' for name, source in sources.items())}",
    ]
    words = words_of(config)
    # Refused where no bucket has the filter.
    if chats.searched(parse(chats.Config, [*flags, *words])):
        flags.append("--against=World-Facts,World-Sums")
    return [*flags, *words]


def planted_rows(folder: Path) -> list[Path]:
    """Return the files of chats that still have a planted row."""
    return [path for path in sorted(folder.glob("*.jsonl")) if '"planted"' in path.read_text(encoding="utf-8")]


def steps(config: Config) -> Iterator[Step]:
    """Yield the steps of the series."""
    data = source_of(config, "world" if config.seed == 1 else f"world-{config.seed}")
    yield tokenizer_step(config, data)
    yield Step("world", ["nanochat.world", f"--seed={config.seed}"])
    buckets = base_dir().resolve() / "world_buckets" / config.tag
    yield Step(
        "buckets", ["tracks.chatdata.planted", f"--seed={config.seed}", f"--buckets={buckets}", f"--rows={config.rows}"]
    )
    yield Step(
        "chats",
        ["tracks.chatdata.chats", *chat_flags(config)],
        output=f"chats/{config.tag}",
        parent=f"tok_train/{config.tag}",
        local=[str(path) for path in sorted(buckets.glob("*.jsonl"))],
    )
    left = planted_rows(stage_dir("chats", config.tag))
    if left:
        raise UserError(f"planted rows are left in {', '.join(map(str, left))}")
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    chats.check(parse(chats.Config, chat_flags(config)))
    run_series("chatdata", config.tag, steps(config))


if __name__ == "__main__":
    run_script(main)
