"""Download, convert and check everything a run needs, before the run.

python -m scripts.prepare --data=climbmix --num-shards=170 --tasks=core,gsm8k
python -m scripts.prepare --check --data=my-text
"""

import time
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.data.hub import Found, HubFile, fetch
from nanochat.evals.core_tasks import BUNDLE, data_files
from nanochat.log import print0, terminal_table
from nanochat.paths import stage_dir
from tasks import TASKS
from tasks.common import pick

CORE = "core"  # the bundle of base evaluations, beside the tasks of the table


@dataclass(frozen=True)
class Config:
    """Download, convert and check everything a run needs."""

    data: str = option("climbmix", "corpus, folder, or mix like climbmix:0.7,my-text:0.3; empty: none", group="data")
    tasks: str = option("", f"download the files of these tasks, by comma: {', '.join([CORE, *TASKS])}", group="data")
    num_shards: Count = option(0, "training shards of a named corpus; 0: its default", group="data", unit="SHARDS")
    tokens: Count = option(0, "training tokens of the run: take enough shards; 0: --num-shards", group="data", least=0)
    offline: bool = option(False, "download nothing: a missing file is an error", group="data")
    skip_bad: bool = option(False, "leave out damaged files and rows, and count them", group="data")
    check: bool = option(False, "read every document and list problems; exit status 1 if there are any", group="check")
    tag: str = option("default", "run of the tokenizer that --check counts tokens with, if it exists", group="check")


def check_text(config: Config) -> int:
    """Print counts and problems of all documents; return the number of problems."""
    from nanochat.data.corpus import parse_data, source_files, source_name
    from nanochat.data.documents import check_documents
    from nanochat.tokenizer import Tokenizer

    path = stage_dir("tok_train", config.tag) / "tokenizer.json"
    tokenizer = Tokenizer.load(path) if path.exists() else None
    rows = []
    problems = 0
    for source, _ in parse_data(config.data):
        name = source_name(source)
        files = source_files(source, config.num_shards, config.offline)
        counts, messages = check_documents(name, files, tokenizer)
        for message in messages:
            print0(message)
        rows.append([name, len(files), *counts.values()])
        problems += counts["Problems"]
    # A column for each count, after name and number of files.
    columns = [["Source", ""], ["Files", ",d"], *([name, ",d"] for name in counts)]
    print0(terminal_table({"title": "", "columns": columns, "rows": rows}))
    print0(f"check: {problems:,} problems")
    return problems


def fetch_all(wanted: list[HubFile], offline: bool) -> dict[HubFile, Found]:
    """Download files, and the files that the list of CORE tasks names if it is one of them."""
    # The list names further files, known only after the download.
    found = dict(zip(wanted, fetch(wanted, offline), strict=True))
    if BUNDLE[0] in found:
        named = data_files(found[BUNDLE[0]].path)
        found |= zip(named, fetch(named, offline), strict=True)
    return found


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.data.corpus import CORPORA, hub_files, open_corpus, parse_data, shards_for, source_files

    # --check only reads, and converts nothing.
    if config.check:
        raise SystemExit(1 if check_text(config) else 0)

    start = time.monotonic()
    wanted: list[HubFile] = []
    num_shards = config.num_shards
    if config.data:
        if config.tokens and not num_shards:
            num_shards = shards_for(config.data, config.tokens)
        wanted += hub_files(config.data, num_shards)
        for source, _ in parse_data(config.data):
            if source not in CORPORA:
                source_files(source)  # a typing error ends it now; the embedded world has the files of tasks too
    for name in pick(config.tasks, [CORE, *TASKS]):
        wanted += BUNDLE if name == CORE else TASKS[name].files()
    found = fetch_all(wanted, config.offline)
    # The table of files: name, bytes, origin, seconds.
    rows = [[str(file), place.path.stat().st_size, place.origin, place.seconds] for file, place in found.items()]

    # Folders are converted here. All shards are opened, so that damage is found now and not during the run.
    if config.data:
        opened = time.monotonic()
        corpus = open_corpus(config.data, num_shards, config.offline, config.skip_bad)
        seconds = time.monotonic() - opened
        about = corpus.describe()
        # Files from the hub are in the table already.
        for entry in corpus.manifest():
            if entry["source"] not in CORPORA:
                rows.append([f"{entry['source']}/{entry['file']}", entry["size"], "this machine", seconds])
        print0(
            f"data: {about['name']}: {about['documents']:,} documents, {about['bytes']:,} bytes of text,"
            f" {about['fingerprint'][:12]}"
        )
    columns = [["File", ""], ["Bytes", ",d"], ["From", ""], ["Seconds", ".1f"]]
    print0(terminal_table({"title": "", "columns": columns, "rows": rows}))
    size = sum(row[1] for row in rows)
    print0(f"prepare: {len(rows):,} files, {size:,} bytes, in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    run(main, Config)
