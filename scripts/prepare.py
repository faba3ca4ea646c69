"""Fetch, convert and check beforehand all that a run will need, and say what that took.

python -m scripts.prepare --data=climbmix --num-shards=170 --tasks=core,gsm8k
python -m scripts.prepare --check --data=my-text
python -m scripts.prepare --tokenize --data=my-text
"""

import itertools
import time
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.data.hub import fetch
from nanochat.evals.core_tasks import BUNDLE, data_files
from nanochat.log import print0
from nanochat.paths import stage_dir
from tasks import TASKS
from tasks.common import pick

# What evaluations read besides the tasks of the table, by name.
OTHER_FILES = {
    "core": list(BUNDLE),  # and what its list of tasks names
}
KNOWN = [*OTHER_FILES, *TASKS]


@dataclass(frozen=True)
class Config:
    """Fetch, convert and check beforehand all that a run will need."""

    data: str = option("climbmix", "corpus, folder:PATH, mix like climbmix:0.7,my-text:0.3; empty: none", group="data")
    tasks: str = option("", f"tasks, by comma, whose files to fetch: {', '.join(KNOWN)}", group="data")
    num_shards: Count = option(0, "shards of a named corpus to train on; 0: its default", group="data", unit="SHARDS")
    tokens: Count = option(0, "that a run will train on: shards enough for it; 0: --num-shards", group="data", least=0)
    offline: bool = option(False, "fetch nothing: a file that is missing is an error", group="data")
    skip_bad: bool = option(False, "leave out damaged files and rows, and count them", group="data")
    check: bool = option(False, "read every document and list what is wrong; exit with 1 if anything is", group="check")
    tokenize: bool = option(False, "write the text as token shards too, by the tokenizer of --tag", group="tokens")
    tag: str = option("default", "name of the tokenizer; --check counts without one if need be", group="tokens")

    def __post_init__(self):
        if self.tokenize and (self.check or not self.data):
            raise ValueError("--tokenize needs a --data and goes without --check, run that before")


def check(config: Config) -> int:
    """Print what is in the text and what is wrong with it; how many problems there are."""
    from nanochat.data.corpus import find
    from nanochat.data.lint import CHARS_PER_TOKEN, PROBLEMS, lint
    from nanochat.report.card import terminal_table
    from nanochat.tokenizer import Tokenizer

    path = stage_dir("tok_train", config.tag) / "tokenizer.json"
    tokenizer = Tokenizer.load(path) if path.exists() else None
    rows, problems = [], 0
    for listing, _ in find(config.data, config.num_shards, config.offline):
        counts, shown = lint(listing.name, listing.files, listing.column, tokenizer)
        rows.append([listing.name, len(listing.files), *counts.values()])
        problems += sum(counts[name] for name in PROBLEMS)
        for what in shown:
            print0(what)
    columns = [["Source", ""], *([name, ",d"] for name in ("Files", *counts))]
    print0(terminal_table({"title": "", "columns": columns, "rows": rows}))
    how = f"by the tokenizer {config.tag}" if tokenizer else f"characters / {CHARS_PER_TOKEN}"
    print0(f"check: {problems:,} problems; tokens are counted {how}")
    return problems


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.data.corpus import CORPORA, find, hub_files, open_corpus, shards_for
    from nanochat.report.card import terminal_table
    from nanochat.tokenizer import Tokenizer

    if config.check:
        raise SystemExit(1 if check(config) else 0)
    # Asked for first: that it is missing is not to be found out after the downloads.
    tokenizer = Tokenizer.load(stage_dir("tok_train", config.tag) / "tokenizer.json") if config.tokenize else None

    start = time.monotonic()
    shards = config.num_shards or (shards_for(config.data, config.tokens) if config.tokens else 0)
    wanted = hub_files(config.data, shards)
    if config.data and not wanted:
        find(config.data)  # made now: the embedded world has the files of the tasks too
    tasks = [OTHER_FILES.get(name) or TASKS[name].files() for name in pick(config.tasks, KNOWN)]
    wanted += itertools.chain(*tasks)
    found = dict(zip(wanted, fetch(wanted, config.offline), strict=True))
    if bundle := found.get(BUNDLE[0]):
        named = data_files(bundle.path)
        found |= zip(named, fetch(named, config.offline), strict=True)
    rows = [[str(file), place.path.stat().st_size, place.origin, place.seconds] for file, place in found.items()]

    # What needs no fetching may need converting or making; and all of it is opened once, so that damage is found now.
    if config.data:
        began = time.monotonic()
        corpus = open_corpus(config.data, shards, config.offline, config.skip_bad)
        about, seconds = corpus.describe(), time.monotonic() - began
        made = [entry for entry in corpus.manifest() if entry["source"] not in CORPORA]
        rows += [[f"{entry['source']}/{entry['file']}", entry["size"], "this machine", seconds] for entry in made]
        content = f"{about['documents']:,} documents, {about['bytes']:,} bytes of text, {about['fingerprint'][:12]}"
        print0(f"data: {about['name']}: {content}")
    columns = [["File", ""], ["Bytes", ",d"], ["From", ""], ["Seconds", ".1f"]]
    print0(terminal_table({"title": "", "columns": columns, "rows": rows}))
    print0(f"prepare: {len(rows):,} files, {sum(row[1] for row in rows):,} bytes, in {time.monotonic() - start:.1f} s")

    if tokenizer:
        from nanochat.dataloader import tokenize  # brings torch, which takes seconds

        began, folder = time.monotonic(), stage_dir("tokens", config.tag)
        count = tokenize(corpus, tokenizer, folder)
        print0(f"tokenize: {count:,} of {about['files']:,} shards, in {time.monotonic() - began:.1f} s; to {folder}")


if __name__ == "__main__":
    run(main, Config)
