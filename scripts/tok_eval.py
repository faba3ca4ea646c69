"""Compare the tokenizer with those of GPT-2 and GPT-4: bytes per token, on several kinds of text.

python -m scripts.tok_eval --data=FOLDER
"""

from __future__ import annotations

import threading
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import options, run
from nanochat.log import print0, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import TokenizerSettings

if TYPE_CHECKING:
    from tiktoken import Encoding

REFERENCES = {"GPT-2": "gpt2", "GPT-4": "cl100k_base"}  # name on the card -> name in tiktoken
SAMPLES = ("news", "korean", "code", "math", "science")  # scripts/samples/*.txt, written for this
SPLIT_BYTES = 4_000_000  # of each split of the corpus
PATIENCE = 30  # seconds to wait for the download of a vocabulary


@options()
class Config(TokenizerSettings):
    """Compare the tokenizer with those of GPT-2 and GPT-4."""


def load_reference(name: str) -> Encoding | str:
    """Return a vocabulary of tiktoken, or the reason why it is not available."""
    import tiktoken

    answers: list[Encoding | str] = [f"no answer within {PATIENCE} s"]

    def load() -> None:
        try:
            answers.append(tiktoken.get_encoding(name))
        except (OSError, ValueError) as error:  # no network, or a file with another hash
            answers.append(f"{type(error).__name__}, set TIKTOKEN_CACHE_DIR to a folder that holds it")

    # tiktoken downloads without a time limit; a daemon does not keep the process alive.
    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    loader.join(PATIENCE)
    return answers[-1]


def comparison(label: str, reference: Encoding | str, texts: dict[str, list[str]], ours: dict[str, int]) -> dict:
    """Return the table of one reference for the card; dashes, and the reason in the title, if it is missing."""
    columns = f"Text Type | Bytes:d | {label} Tokens:d | {label} Ratio:.2f"
    columns += " | Ours Tokens:d | Ours Ratio:.2f | Relative Diff %:+.1%"
    rows = []
    for name, documents in texts.items():
        # Bytes, because characters need one byte in English and three in Korean.
        size = sum(len(text.encode()) for text in documents)
        tokens = ratio = difference = None  # printed as dashes
        if not isinstance(reference, str):
            tokens = sum(map(len, reference.encode_ordinary_batch(documents)))
            ratio = size / tokens
            difference = (tokens - ours[name]) / tokens
        rows.append([name, size, tokens, ratio, ours[name], size / ours[name], difference])
    title = f"Comparison with {label}"
    if isinstance(reference, str):
        title += f", which is not available: {reference}"
    return table_of(title, columns, rows)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.data.corpus import open_corpus
    from nanochat.data.documents import by_size
    from nanochat.tokenizer import Tokenizer

    outcome = Outcome.begin("tok_eval", config.tag, config)
    path = stage_dir("tok_train", config.tag) / "tokenizer.json"
    tokenizer = Tokenizer.load(path)
    corpus = open_corpus(config.data)
    texts = {}  # name -> documents
    for name in SAMPLES:
        texts[name] = [(Path(__file__).parent / f"samples/{name}.txt").read_text(encoding="utf-8")]
    # The training split shows fit, the validation split shows generalization.
    for split in ("train", "val"):
        encoded = (text.as_py().encode() for text in chain.from_iterable(corpus.batches(split)))
        # The first documents, or all.
        texts[f"{corpus.name}-{split}"] = [text.decode() for text in next(by_size(encoded, SPLIT_BYTES), [])]

    ours = {}  # tokens of each text
    for name, documents in texts.items():
        # Documents are encoded one by one, without bos, like the references do.
        ids, _ = tokenizer.core.encode_batch(documents)
        ours[name] = len(ids)
    for label, name in REFERENCES.items():
        table = comparison(label, load_reference(name), texts, ours)
        outcome.tables.append(table)
        print0(terminal_table(table), "\n")
    outcome.add_artifact(path)
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
