"""Compare the tokenizer with those of GPT-2 and GPT-4: how many bytes a token stands for, on several kinds of text.

python -m scripts.tok_eval --data=FOLDER
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanochat.config import Count, option, run
from nanochat.log import MetricLog, print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.report.card import terminal_table

REFERENCES = {"GPT-2": "gpt2", "GPT-4": "cl100k_base"}  # as the card names them -> as tiktoken does
SAMPLES = ("news", "korean", "code", "math", "science")  # scripts/samples/*.txt, written for this
SPLIT_BYTES = 4_000_000  # of each split of the corpus


@dataclass(frozen=True)
class Config:
    """Compare the tokenizer with those of GPT-2 and GPT-4."""

    data: str = option("auto", "folder of text, corpus by name, or a mix of them", group="data", in_card=False)
    skip_bad: bool = option(False, "leave out damaged files and rows", group="data", in_card=False)
    tag: str = option("default", "name of the folder with the tokenizer", group="run", in_card=False)
    run: str = option("dummy", "name for W&B; dummy: do without", group="run", in_card=False)
    threads: Count = option(0, "0: as many as there are cores", group="run", unit="THREADS", least=0, in_card=False)
    patience: Count = option(
        30, "longest wait for a vocabulary to be fetched", group="run", unit="SECONDS", least=0, in_card=False
    )


def load_references(patience: float) -> dict[str, Any]:
    """A tiktoken.Encoding for each of REFERENCES, or a text that says why there is none."""
    import tiktoken
    from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

    answers: dict[str, Any] = {}

    def load(label: str, name: str) -> None:
        try:  # not get_encoding: it holds a lock while it fetches, so that one hanging vocabulary stops the others
            answers[label] = tiktoken.Encoding(**ENCODING_CONSTRUCTORS[name]())
        except (OSError, ValueError) as error:  # no network; not the file that was expected
            answers[label] = f"{type(error).__name__}, set TIKTOKEN_CACHE_DIR to a folder that holds it"

    # Daemons: tiktoken downloads without a time limit, and a thread that hangs must not keep the process alive.
    loaders = [threading.Thread(target=load, args=item, daemon=True) for item in REFERENCES.items()]
    for loader in loaders:
        loader.start()
    deadline = time.monotonic() + patience
    for loader in loaders:
        loader.join(max(0, deadline - time.monotonic()))
    return {label: answers.get(label, f"no answer within {patience} s") for label in REFERENCES}


def byte_count(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def beginning(batches: Iterator[Any]) -> list[str]:
    """The first documents of a split, until there are SPLIT_BYTES of them."""
    texts, size = [], 0
    for text in (text for batch in batches for text in batch.to_pylist()):
        if size >= SPLIT_BYTES:
            break
        texts.append(text)
        size += len(text.encode())
    return texts


def comparison(label: str, reference: Any, texts: dict[str, list[str]], ours: dict[str, int]) -> dict:
    """The card's table of one reference; where it is missing, its cells are dashes and the last row says why."""
    missing = isinstance(reference, str)
    columns = [["Text Type", ""], ["Bytes", "d"], [f"{label} Tokens", "d"], [f"{label} Ratio", ".2f"]]
    columns += [["Ours Tokens", "d"], ["Ours Ratio", ".2f"], ["Relative Diff %", "+.1%"]]
    rows: list[list] = []
    for name, documents in texts.items():
        size, mine = byte_count(documents), ours[name]
        theirs = None if missing else sum(map(len, reference.encode_ordinary_batch(documents)))
        ratio, saved = (None, None) if missing else (size / theirs, (theirs - mine) / theirs)
        rows.append([name, size, theirs, ratio, mine, size / mine, saved])
    if missing:
        rows.append([f"{label} is not available: {reference}", *[None] * 6])
    return {"title": f"Comparison with {label}", "columns": columns, "rows": rows}


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    import pyarrow as pa

    from nanochat.data.corpus import open_corpus
    from nanochat.tokenizer import Tokenizer

    outcome = Outcome.begin("tok_eval", config.tag, config)
    path = stage_dir("tok_train", config.tag) / "tokenizer.json"
    tokenizer = Tokenizer.load(path)
    corpus = open_corpus(config.data, skip_bad=config.skip_bad)
    texts = {name: [(Path(__file__).parent / f"samples/{name}.txt").read_text(encoding="utf-8")] for name in SAMPLES}
    texts |= {f"{corpus.name}-{split}": beginning(corpus.batches(split)) for split in ("train", "val")}
    ours = {
        name: len(tokenizer.encode_arrow(pa.array(documents, pa.string()), threads=config.threads)[0])
        for name, documents in texts.items()
    }

    for label, reference in load_references(config.patience).items():
        table = comparison(label, reference, texts, ours)
        outcome.tables.append(table)
        print0(terminal_table(table), end="\n\n")
    outcome.add_artifact(path)
    with MetricLog(stage_dir("tok_eval", config.tag), config.run, asdict(config)) as log:
        log.write(
            "tokenizer",
            0,
            **{f"bytes_per_token/{name}": byte_count(texts[name]) / tokens for name, tokens in ours.items()},
        )
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
