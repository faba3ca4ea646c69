"""Our loader and others, in turn in one run: tokens a second over the first pass, share dropped, peak memory.

    python -m bench.dataloader --data FOLDER [--reference CHECKOUT]

The reference is a checkout of the public nanochat, whose best-fit loader is run as it is, with its own tokenizer class
over our vocabulary. `plain` is written here and stays as it is: what one writes first. Every measurement is a process
of its own (importing and the tokenizer are not timed, the wait for the first batch is). Linux only: /proc.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import Figure, compare, contenders, parser_of, peak_memory
from bench.findings import Findings
from bench.tokenizer import first_documents
from bench.tokenizer_peers import read_vocabulary, write_vocabulary
from nanochat.errors import UserError

SHARDS = 8  # and one more for validation, which the reference wants
ROW_GROUP = 1024  # documents
PLAIN_BUFFER = 1000  # documents
FIGURES = [
    Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"),
    Figure("dropped", "share", shown=".2%"),
    Figure("memory", "MB", shown=",.0f"),
    Figure("growth", "MB", shown=",.0f"),
]


# ---- the loaders, each in a process of its own: sizes of their batches for one pass over the data, and the facts ----


def train_files(job: argparse.Namespace):
    return sorted(Path(job.base, "base_data_climbmix").glob("*.parquet"))[:-1]


def ours(job: argparse.Namespace):
    from nanochat.data.corpus import Corpus, Source, open_shards
    from nanochat.dataloader import TextLoader
    from nanochat.tokenizer import Tokenizer

    shards = open_shards(train_files(job))
    corpus = Corpus((Source("bench", 1.0, {"train": shards, "val": ()}),))
    tokenizer = Tokenizer.load(Path(job.base, "tokenizer.json"))
    loader = TextLoader(corpus, tokenizer, job.rows, job.length)

    def batches():
        [deal] = loader._deals
        # Until every lane has begun its second pass; all do at about the same time.
        while not all(deal.epoch(lane, chunk.unit) for (lane, _), chunk in loader._chunks.items()):
            yield next(loader)[0].numel()

    def facts():
        before = peak_memory()
        tokens = 0
        while tokens < job.long:
            tokens += next(loader)[0].numel()
        return {"dropped": 0.0, "growth": peak_memory() - before}

    return batches(), facts


def reference(job: argparse.Namespace):
    from nanochat.dataloader import tokenizing_distributed_data_loader_with_state_bos_bestfit as make
    from nanochat.tokenizer import RustBPETokenizer

    made = delivered = 0

    class Counting(RustBPETokenizer):
        def encode(self, *arguments: Any, **options: Any):
            nonlocal made
            found = super().encode(*arguments, **options)
            made += sum(map(len, found))
            return found

    loader = make(Counting(read_vocabulary(job.base), "<|bos|>"), job.rows, job.length, "train", device="cpu")

    def batches():
        nonlocal delivered
        for inputs, _, state in loader:
            delivered += job.rows * (job.length + 1)
            if state["epoch"] > 1:
                return
            yield inputs.numel()

    def facts():
        waiting = sum(map(len, loader.gi_frame.f_locals["doc_buffer"]))
        return {"dropped": 1 - delivered / (made - waiting)}

    return batches(), facts


def plain(job: argparse.Namespace):
    import torch
    from pyarrow import parquet

    encoding = read_vocabulary(job.base)
    lost = 0
    placed = 0
    bos = encoding.encode_single_token("<|bos|>")

    def documents():
        for path in train_files(job):
            file = parquet.ParquetFile(path)
            for group in range(file.num_row_groups):
                texts = file.read_row_group(group, columns=["text"]).column(0).to_pylist()
                for start in range(0, len(texts), 128):
                    for ids in encoding.encode_ordinary_batch(texts[start : start + 128], num_threads=4):
                        yield [bos, *ids]

    def batches():
        nonlocal lost, placed
        source = documents()
        buffer = []
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

    return batches(), lambda: {"dropped": lost / (lost + placed)}


LOADERS = {"ours": ours, "reference": reference, "plain": plain}


def first_pass(name: str, options: dict):
    batches, facts = LOADERS[name](argparse.Namespace(**options))
    return partial(sum, batches), lambda tokens: {"count": tokens} | facts()


# ---- preparing, and the parent ----


def write_data(options: argparse.Namespace) -> None:
    """The first documents of a folder as shards, and a tokenizer of them in both forms."""
    from pyarrow import parquet

    from nanochat.tokenizer import Tokenizer

    table, size = first_documents(options.data, options.megabytes)
    if len(table) < 2 * PLAIN_BUFFER:
        raise UserError(f"--megabytes: {len(table)} documents are too few for a buffer of {PLAIN_BUFFER}, give more")
    print(f"{size / 1e6:.1f} MB of text")
    folder = Path(options.base, "base_data_climbmix")
    folder.mkdir()
    each = -(-len(table) // SHARDS)
    for number in range(SHARDS + 1):
        part = table.slice(number * each, each) if number < SHARDS else table.slice(0, 1)
        parquet.write_table(part, folder / f"shard_{number:05d}.parquet", row_group_size=ROW_GROUP, compression="zstd")
    write_vocabulary(Tokenizer.train(table["text"].chunks, options.vocab), Path(options.base))


def main() -> None:
    # rows of a batch; length of a row in tokens
    sizes = {"vocab": 32768, "rows": 32, "length": 2048, "repeats": 3}
    parser = parser_of("dataloader", __doc__, has_reference=True, **sizes)
    parser.add_argument("--data", required=True, help="folder of parquet files with a column `text`")
    parser.add_argument("--megabytes", type=float, default=100, help="text of one pass")
    parser.add_argument("--long", type=float, default=200e6, help="tokens after which our memory is looked at again")
    options = parser.parse_args()
    findings = Findings("dataloader", options.json)
    with tempfile.TemporaryDirectory() as options.base:
        write_data(options)
        works = {name: (first_pass, name, vars(options)) for name in LOADERS}
        runs = contenders(options.reference, works, env={"NANOCHAT_BASE_DIR": options.base})
        compare(findings, "data loader", runs, FIGURES, options.repeats)
    findings.finish()


if __name__ == "__main__":
    main()
