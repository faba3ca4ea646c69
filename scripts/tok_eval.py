"""Compare the tokenizer with those of GPT-2 and GPT-4: bytes per token, on several kinds of text.

python -m scripts.tok_eval --data=FOLDER
"""

from __future__ import annotations

from itertools import chain
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import options, run_script
from nanochat.log import Record, print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import tokenizer_file
from nanochat.settings import TokenizerSettings

if TYPE_CHECKING:
    from tiktoken import Encoding

    from nanochat.tokenizer import Tokenizer

REFERENCES = ("gpt2", "cl100k_base")  # names in tiktoken
COLUMNS = "Text Type | Bytes:d | Ours:.2f | GPT-2:.2f | GPT-4:.2f"  # the last ones are those of REFERENCES
SAMPLES = ("news", "korean", "code", "math", "science")  # scripts/samples/*.txt, written for this
SPLIT_CHARS = 4_000_000  # of each split of the corpus, about
PATIENCE = 30  # seconds to wait for the download of a vocabulary


@options()
class Config(TokenizerSettings):
    """Compare the tokenizer with those of GPT-2 and GPT-4."""


def load_reference(name: str) -> Encoding | None:
    """Return a vocabulary of tiktoken; None if it is neither in the cache nor downloaded in time."""
    import tiktoken

    try:
        # tiktoken downloads without a time limit; the thread does not keep the process alive.
        with ThreadPool(1) as pool:
            return pool.apply_async(tiktoken.get_encoding, [name]).get(PATIENCE)
    except (OSError, ValueError, TimeoutError) as error:  # no network, a file with another hash, no answer
        print0(f"tok_eval: {name} is not available: {type(error).__name__}, set TIKTOKEN_CACHE_DIR to its folder")
        return None


def comparison(texts: dict[str, list[str]], tokenizer: Tokenizer, references: list[Encoding | None]) -> Record:
    """Return the table for the card; a missing reference has dashes."""
    rows = []
    for name, documents in texts.items():
        # Bytes, because characters need one byte in English and three in Korean.
        size = sum(len(text.encode()) for text in documents)
        # Documents are encoded one by one, without bos, like the references do.
        ids, _ = tokenizer.core.encode_batch(documents)
        ratios: list[float | None] = [size / len(ids)]
        for reference in references:
            if reference is None:
                ratios.append(None)
            else:
                ratios.append(size / sum(map(len, reference.encode_ordinary_batch(documents))))
        rows.append([name, size, *ratios])
    return table_of("Bytes per token", COLUMNS, rows)


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus
    from nanochat.data.documents import by_size
    from nanochat.tokenizer import Tokenizer

    outcome = Outcome.begin("tok_eval", config.tag, config)
    path = tokenizer_file(config.tag)
    tokenizer = Tokenizer.load(path)
    corpus = open_corpus(config.data)
    folder = Path(__file__).parent / "samples"
    texts = {name: [(folder / f"{name}.txt").read_text(encoding="utf-8")] for name in SAMPLES}  # name -> documents
    # The training split shows fit, the validation split shows generalization.
    for split in ("train", "val"):
        documents = chain.from_iterable(batch.to_pylist() for batch in corpus.batches(split))
        # The first documents, or all.
        texts[f"{corpus.name}-{split}"] = next(by_size(documents, SPLIT_CHARS), [])
    outcome.tables.append(comparison(texts, tokenizer, list(map(load_reference, REFERENCES))))
    outcome.add_artifact(path)
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
