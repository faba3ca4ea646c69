"""Download and convert everything a run needs, before the run.

python -m scripts.prepare --data=climbmix --num-shards=170 --tasks=core,gsm8k
python -m scripts.prepare --data=my-text
"""

from pathlib import Path

from nanochat.config import Count, option, options, run_script
from nanochat.data.hub import HubError, fetch
from nanochat.evals.core_tasks import read_bundle
from nanochat.log import print0
from nanochat.settings import CorpusSettings
from tasks import TASKS
from tasks.common import pick

CORE = "core"  # the bundle of base evaluations, beside the tasks of the table


@options("data")
class Config(CorpusSettings):
    """Download and convert everything a run needs."""

    data = option("climbmix", "corpus, folder, or mix like climbmix:0.7,my-text:0.3 (empty: none)")
    tasks: str = option("", f"download the files of these tasks, separated by commas: {', '.join([CORE, *TASKS])}")
    optional_tasks: str = option(
        "", "like --tasks, but a line says which of them cannot be had, and the command goes on"
    )
    tokens: Count = option(0, "download enough shards for this many training tokens (0: use --num-shards)")


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus, shards_for

    # A typing error ends it before the download.
    tasks = pick(config.tasks, [CORE, *TASKS])
    optional = [name for name in pick(config.optional_tasks, [CORE, *TASKS]) if name not in tasks]
    paths = []
    # First, because it is small and from another server: whether it can be had is known soon.
    if CORE in tasks:
        paths += core_files()
    for name in optional:
        try:
            paths += core_files() if name == CORE else fetch(TASKS[name].files())
        except HubError as error:
            print0(f"download: {name} is left out: {error}")
    # Folders are converted here. All shards are opened, so that damage is found now and not during the run.
    if config.data:
        about = open_corpus(config.data, config.num_shards or shards_for(config.data, config.tokens)).describe()
        form = "data: {name}: {files:,} files, {documents:,} documents, {bytes:,} bytes of text, {fingerprint:.12}"
        print0(form.format_map(about))
    paths += fetch([file for name in tasks if name != CORE for file in TASKS[name].files()])
    if paths:
        print0(f"tasks: {len(paths):,} files")


def core_files() -> list[Path]:
    """Return the files of CORE's tasks, downloaded if necessary; some tasks share one."""
    return sorted({task.path for task in read_bundle()})


if __name__ == "__main__":
    run_script(main)
