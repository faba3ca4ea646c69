"""Our loader and others, in turn in one run: tokens a second over the first pass, share dropped, peak memory.

    python -m bench.dataloader --data FOLDER [--reference CHECKOUT]

The reference is a checkout of the public nanochat, whose best-fit loader is run as it is, with its own tokenizer class
over our vocabulary. `plain` is written here and stays as it is: what one writes first. Every measurement is a process
of its own (importing and the tokenizer are not timed, the wait for the first batch is). Linux only: /proc.
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SHARDS = 8  # and one more for validation, which the reference wants
ROW_GROUP = 1024  # documents
PLAIN_BUFFER = 1000  # documents
LIMIT = 1800  # seconds a process may take


class Job(NamedTuple):
    """What one child process has to do; travels as JSON on its command line."""

    name: str
    base: str  # folder with base_data_climbmix/, where the reference looks, and the tokenizer
    rows: int
    length: int
    threads: int
    reference: str
    long: int  # tokens of the run that shows whether memory grows


# ---- the loaders, each in a process of its own: they yield the tokens of a batch, for one pass over the data ----


def train_files(job: Job) -> list[Path]:
    return sorted(Path(job.base, "base_data_climbmix").glob("*.parquet"))[:-1]


def tiktoken_encoding(job: Job) -> Any:
    import tiktoken

    definition = json.loads(Path(job.base, "tiktoken.json").read_text())
    ranks = {base64.b64decode(token): rank for rank, token in enumerate(definition["tokens"])}
    return tiktoken.Encoding(
        "bench", pat_str=definition["pattern"], mergeable_ranks=ranks, special_tokens=definition["special"]
    )


def ours(overflow: str, **options: Any) -> Callable[[Job], Any]:
    def prepare(job: Job) -> Any:
        from nanochat.corpus import Corpus, Source
        from nanochat.dataloader import TextLoader, tokenize
        from nanochat.documents import Bad
        from nanochat.shards import open_shards
        from nanochat.tokenizer import Tokenizer

        shards = open_shards(train_files(job), "text", Bad(skip=False))
        corpus = Corpus(((Source("bench", shards, ()), 1.0),))
        tokenizer = Tokenizer.load(Path(job.base, "tokenizer.json"))
        tokens = Path(job.base, "tokens") if options.get("tokens") else None
        if tokens:
            tokenize(corpus, tokenizer, tokens, job.threads)
        loader = TextLoader(
            corpus, tokenizer, job.rows, job.length, overflow=overflow, threads=job.threads, tokens=tokens
        )

        def batches() -> Iterator[int]:
            while loader.epoch < 1:
                yield next(loader)[0].numel()

        def long_run() -> None:
            while loader.tokens_seen < job.long:
                next(loader)

        return batches(), lambda: loader.dropped_share, long_run if overflow == "carry" and not tokens else None

    return prepare


def reference(job: Job) -> Any:
    os.environ["NANOCHAT_BASE_DIR"] = job.base
    sys.path.insert(0, job.reference)
    from nanochat.dataloader import tokenizing_distributed_data_loader_with_state_bos_bestfit as make
    from nanochat.tokenizer import RustBPETokenizer

    made = delivered = 0

    class Counting(RustBPETokenizer):
        def encode(self, *arguments: Any, **options: Any) -> Any:
            nonlocal made
            found = super().encode(*arguments, **options)
            made += sum(map(len, found))
            return found

    loader = make(Counting(tiktoken_encoding(job), "<|bos|>"), job.rows, job.length, "train", device="cpu")

    def batches() -> Iterator[int]:
        nonlocal delivered
        for inputs, _, state in loader:
            if state["epoch"] > 1:
                return
            delivered += job.rows * (job.length + 1)
            yield inputs.numel()

    def dropped() -> float:
        waiting = sum(map(len, loader.gi_frame.f_locals["doc_buffer"]))
        return 1 - (delivered + job.rows * (job.length + 1)) / (made - waiting)

    return batches(), dropped, None


def plain(job: Job) -> Any:
    import torch
    from pyarrow import parquet

    encoding, lost, placed = tiktoken_encoding(job), 0, 0
    bos = encoding.encode_single_token("<|bos|>")

    def documents() -> Iterator[list[int]]:
        for path in train_files(job):
            file = parquet.ParquetFile(path)
            for group in range(file.num_row_groups):
                texts = file.read_row_group(group, columns=["text"]).column(0).to_pylist()
                for start in range(0, len(texts), 128):
                    for ids in encoding.encode_ordinary_batch(texts[start : start + 128], num_threads=4):
                        yield [bos, *ids]

    def batches() -> Iterator[int]:
        nonlocal lost, placed
        source, buffer = documents(), []
        while True:
            rows = []
            for _ in range(job.rows):
                row: list[int] = []
                while (room := job.length + 1 - len(row)) > 0:
                    while len(buffer) < PLAIN_BUFFER:
                        if (ids := next(source, None)) is None:
                            return
                        buffer.append(ids)
                    best = -1
                    for i, ids in enumerate(buffer):
                        if len(ids) <= room and (best < 0 or len(ids) > len(buffer[best])):
                            best = i
                    if best < 0:
                        best = min(range(len(buffer)), key=lambda i: len(buffer[i]))
                    ids = buffer.pop(best)
                    lost += max(0, len(ids) - room)
                    placed += min(room, len(ids))
                    row += ids[:room]
                rows.append(row)
            yield torch.tensor(rows)[:, :-1].numel()

    return batches(), lambda: lost / (lost + placed), None


LOADERS = {
    "ours, carry": ours("carry"),
    "ours, crop": ours("crop"),
    "ours, token shards": ours("carry", tokens=True),
    "reference": reference,
    "plain": plain,
}
PEERS = ("reference", "plain")


def child(job: Job) -> None:
    def memory(field: str) -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) // 1000  # MB

    batches, dropped, long_run = LOADERS[job.name](job)
    start, tokens, first = time.perf_counter(), 0, 0.0
    for count in batches:
        tokens += count
        first = first or time.perf_counter() - start
    seconds = time.perf_counter() - start
    found = {"tokens": tokens, "seconds": seconds, "first": first, "dropped": dropped(), "memory": memory("VmHWM")}
    if long_run:
        long_run()
        found["long_memory"] = memory("VmHWM")
    print(json.dumps(found), flush=True)
    os._exit(0)  # background threads need not be waited for


# ---- preparing, running, and the table ----


def write_data(data: Path, size: int, vocab: int, base: Path) -> int:
    """The first documents of a folder as shards, and a tokenizer of them in both forms; returns the bytes of text."""
    import pyarrow
    from pyarrow import compute, parquet

    from nanochat.tokenizer import Tokenizer

    files = sorted(data.glob("*.parquet"))
    if not files:
        raise ValueError(f"--data {data}: give a folder of parquet files with a column `text`")
    table = pyarrow.concat_tables(parquet.read_table(file, columns=["text"]) for file in files)
    ends = compute.cumulative_sum(compute.binary_length(table["text"]).cast("int64"))
    count = compute.sum(compute.less_equal(ends, size)).as_py()
    if count < 2 * PLAIN_BUFFER:
        raise ValueError(f"--megabytes: {count} documents are too few for a buffer of {PLAIN_BUFFER}, give more")
    folder = base / "base_data_climbmix"
    folder.mkdir()
    each = -(-count // SHARDS)
    for number in range(SHARDS + 1):
        part = table.slice(number * each, min(each, count - number * each)) if number < SHARDS else table.slice(0, 1)
        parquet.write_table(part, folder / f"shard_{number:05d}.parquet", row_group_size=ROW_GROUP, compression="zstd")
    tokenizer = Tokenizer.train(table.slice(0, count)["text"].chunks, vocab)
    tokenizer.save(base / "tokenizer.json")
    tokens = [
        base64.b64encode(tokenizer.core.token_bytes(i)).decode() for i in range(vocab - len(tokenizer.special_tokens))
    ]
    definition = {"pattern": tokenizer.core.pattern, "tokens": tokens, "special": tokenizer.special_tokens}
    (base / "tiktoken.json").write_text(json.dumps(definition))
    return ends[count - 1].as_py()


def run_child(job: Job) -> dict:
    command = [sys.executable, "-m", "bench.dataloader", "--job", json.dumps(job)]
    # Outside this repository, so that the reference's package of the same name is found in its checkout.
    if job.name == "reference":
        command[1:3] = [__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"{job.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(results: dict[str, list[dict]]) -> None:
    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in results[name])

    def speed(name: str) -> float:
        return statistics.median(run["tokens"] / run["seconds"] for run in results[name]) / 1e6

    peers = [name for name in PEERS if name in results]
    print(
        f"\n{'':20}{'M tokens/s':>12}{'first batch':>13}{'dropped':>10}{'peak MB':>9}"
        + "".join(f"{'/ ' + p:>13}" for p in peers)
    )
    for name in results:
        ratios = "".join(f"{speed(name) / speed(peer):>12.2f}x" for peer in peers)
        first, dropped, memory = median(name, "first"), median(name, "dropped"), median(name, "memory")
        print(f"{name:20}{speed(name):12.2f}{first:11.2f} s{dropped:10.2%}{memory:9.0f}{ratios}")
    long = [run["long_memory"] - run["memory"] for run in results["ours, carry"]]
    print(
        f"\nours, carry: the peak grows by {statistics.median(long):.0f} MB from the first pass to the long run's end"
    )


def records(results: dict[str, list[dict]]) -> Iterator[dict]:
    """What HOUSE.md asks of every benchmark; ratio > 1: ours is better."""
    figures = {
        "speed": ("M tokens/s", lambda run: run["tokens"] / run["seconds"] / 1e6, False),
        "dropped": ("share", lambda run: run["dropped"], True),
        "peak memory": ("MB", lambda run: run["memory"], True),
    }
    for name, runs in results.items():
        for peer in PEERS if name not in PEERS else ():
            for what, (unit, figure, less_is_better) in figures.items():
                if peer in results:
                    mine, theirs = (statistics.median(map(figure, of)) for of in (runs, results[peer]))
                    better, worse = (theirs, mine) if less_is_better else (mine, theirs)
                    yield {
                        "case": f"{name}: {what}",
                        "unit": unit,
                        "ours": mine,
                        "peer": theirs,
                        "peer_name": peer,
                        "ratio": better / worse if worse else None,
                    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dataloader", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of parquet files with a column `text`")
    parser.add_argument("--reference", type=Path, help="checkout of the public nanochat")
    parser.add_argument("--megabytes", type=float, default=100, help="text of one pass")
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--rows", type=int, default=32, help="of a batch")
    parser.add_argument("--length", type=int, default=2048, help="of a row, in tokens")
    parser.add_argument("--threads", type=int, default=2, help="that ours tokenizes with; tiktoken has 4")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; medians are shown")
    parser.add_argument("--long", type=float, default=200e6, help="tokens after which our memory is looked at again")
    parser.add_argument("--json", type=Path, help="file to write all figures to")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        return child(Job(*json.loads(options.job)))
    if not options.data:
        parser.error("--data is needed")
    names = [name for name in LOADERS if name != "reference" or options.reference]
    results: dict[str, list[dict]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as base:
        size = write_data(options.data, int(options.megabytes * 1e6), options.vocab, Path(base))
        print(f"{size / 1e6:.1f} MB of text; load before the start: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
        checkout = str(options.reference.resolve()) if options.reference else ""
        for repeat in range(options.repeats):
            for name in names:
                job = Job(name, base, options.rows, options.length, options.threads, checkout, int(options.long))
                results[name].append(found := run_child(job))
                said = f"{found['tokens'] / found['seconds'] / 1e6:.2f} M tokens/s"
                print(f"{repeat + 1} of {options.repeats}, {name}: {said}", file=sys.stderr, flush=True)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(list(records(results)), indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
