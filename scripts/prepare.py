"""Fetch, convert and check beforehand all that a run will need, and say what that took.

python -m scripts.prepare --data=climbmix --num-shards=170 --tasks=core,gsm8k
python -m scripts.prepare --check --data=my-text
python -m scripts.prepare --tokenize --data=my-text
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.core_tasks import BUNDLE, data_files
from nanochat.hub import HubFile, fetch
from nanochat.log import print0
from nanochat.paths import stage_dir

ARC = [
    f"{level}/{split}-00000-of-00001.parquet"
    for level in ("ARC-Easy", "ARC-Challenge")
    for split in ("train", "validation", "test")
]
# What evaluations and chat stages read, by the name of the task.
TASK_FILES = {
    "core": list(BUNDLE),  # and what its list of tasks names
    "gsm8k": [HubFile(f"main/{split}-00000-of-00001.parquet", "openai/gsm8k") for split in ("train", "test")],
    "arc": [HubFile(path, "allenai/ai2_arc") for path in ARC],
    "mmlu": [HubFile(f"all/{split}-00000-of-00001.parquet", "cais/mmlu") for split in ("dev", "validation", "test")],
    "aqua": [HubFile(f"raw/{split}-00000-of-00001.parquet", "deepmind/aqua_rat") for split in ("validation", "test")],
    "humaneval": [HubFile("openai_humaneval/test-00000-of-00001.parquet", "openai/openai_humaneval")],
}


@dataclass(frozen=True)
class Config:
    """Fetch, convert and check beforehand all that a run will need."""

    data: str = option("climbmix", "corpus, folder:PATH, mix like climbmix:0.7,my-text:0.3; empty: none", group="data")
    tasks: str = option("", f"tasks, by comma, whose files to fetch: {', '.join(TASK_FILES)}", group="data")
    num_shards: Count = option(0, "shards of a named corpus to train on; 0: its default", group="data", unit="SHARDS")
    offline: bool = option(False, "fetch nothing: a file that is missing is an error", group="data")
    skip_bad: bool = option(False, "leave out damaged files and rows, and count them", group="data")
    check: bool = option(False, "read every document and list what is wrong; exit with 1 if anything is", group="check")
    tokenize: bool = option(False, "write the text as token shards too, by the tokenizer of --tag", group="tokens")
    tag: str = option("default", "name of the tokenizer; --check counts without one if need be", group="tokens")

    def __post_init__(self):
        if self.tokenize and (self.check or not self.data):
            raise ValueError("--tokenize needs a --data and goes without --check, run that before")


def task_files(tasks: str) -> list[HubFile]:
    names = [word.strip().lower() for word in tasks.split(",") if word.strip()]
    for name in names:
        if name not in TASK_FILES:
            raise ValueError(f"--tasks={tasks}: {name} is not one of {', '.join(TASK_FILES)}")
    return [file for name in names for file in TASK_FILES[name]]


def token_counter(tag: str) -> tuple[str, Callable[[list[str]], float]]:
    """How tokens are counted, and what counts them: the tokenizer of a run where there is one."""
    import pyarrow as pa

    from nanochat.lint import CHARS_PER_TOKEN, estimate_tokens
    from nanochat.tokenizer import Tokenizer

    path = stage_dir("tok_train", tag) / "tokenizer.json"
    if not path.exists():
        return f"characters / {CHARS_PER_TOKEN}", estimate_tokens
    tokenizer = Tokenizer.load(path)
    return f"by the tokenizer {tag}", lambda texts: len(tokenizer.encode_arrow(pa.array(texts, pa.large_string()))[0])


def check(config: Config) -> int:
    """Print what is in the text and what is wrong with it; how many problems there are."""
    from nanochat.corpus import find
    from nanochat.lint import lint
    from nanochat.report import terminal_table

    how, count_tokens = token_counter(config.tag)
    rows, problems = [], 0
    for listing in find(config.data, config.num_shards, config.offline):
        files = [found.path for found in listing.train + listing.val]
        about = lint(listing.name, files, listing.column, count_tokens)
        counts = [about.documents, about.characters, round(about.tokens), about.blank, about.over_long, about.bad]
        rows.append([listing.name, len(files), *counts])
        problems += about.problems
        for what in about.shown:
            print0(what)
    names = ["Files", "Documents", "Characters", "Tokens", "Blank", "Over-long", "Bad"]
    print0(terminal_table({"title": "", "columns": [["Source", ""], *([name, ",d"] for name in names)], "rows": rows}))
    print0(f"check: {problems:,} problems; tokens are counted {how}")
    return problems


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.corpus import CORPORA, HERE, find, hub_files, open_corpus, settle
    from nanochat.report import terminal_table
    from nanochat.tokenizer import Tokenizer

    if config.check:
        raise SystemExit(1 if check(config) else 0)
    # Asked for first: that it is missing is not to be found out after the downloads.
    tokenizer = Tokenizer.load(stage_dir("tok_train", config.tag) / "tokenizer.json") if config.tokenize else None

    start = time.monotonic()
    data = settle(config.data, config.num_shards)
    if data in HERE:
        find(data)  # made now: the embedded world has the files of the tasks too
    wanted = [*hub_files(data, config.num_shards), *task_files(config.tasks)]
    found = dict(zip(wanted, fetch(wanted, config.offline), strict=True))
    if bundle := found.get(TASK_FILES["core"][0]):
        named = data_files(bundle.path)
        found |= zip(named, fetch(named, config.offline), strict=True)
    rows = [[str(file), place.path.stat().st_size, place.origin, place.seconds] for file, place in found.items()]

    # What needs no fetching may need converting or making; and all of it is opened once, so that damage is found now.
    if data:
        began = time.monotonic()
        corpus = open_corpus(data, config.num_shards, config.offline, config.skip_bad)
        seconds = time.monotonic() - began
        made = [entry for entry in corpus.manifest() if entry["source"] not in CORPORA]
        rows += [[f"{entry['source']}/{entry['file']}", entry["size"], "this machine", seconds] for entry in made]
        about = corpus.describe()
    columns = [["File", ""], ["Bytes", ",d"], ["From", ""], ["Seconds", ".1f"]]
    print0(terminal_table({"title": "", "columns": columns, "rows": rows}))
    if data:
        content = f"{about['documents']:,} documents, {about['bytes']:,} bytes of text, {about['fingerprint'][:12]}"
        print0(f"data: {about['name']}: {content}")
    print0(f"prepare: {len(rows):,} files, {sum(row[1] for row in rows):,} bytes, in {time.monotonic() - start:.1f} s")

    if tokenizer:
        from nanochat.dataloader import tokenize  # brings torch, which takes seconds

        began, folder = time.monotonic(), stage_dir("tokens", config.tag)
        count = tokenize(corpus, tokenizer, folder)
        print0(f"tokenize: {count:,} of {about['files']:,} shards, in {time.monotonic() - began:.1f} s; to {folder}")


if __name__ == "__main__":
    run(main, Config)
