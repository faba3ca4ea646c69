"""Compare the tokenizer with those of GPT-2 and GPT-4: tokens and bytes per token, on several kinds of text.

python -m scripts.tok_eval --data=FOLDER
"""

from __future__ import annotations

from itertools import chain
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import options, run_script
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import tokenizer_file
from nanochat.settings import TokenizerSettings

if TYPE_CHECKING:
    from tiktoken import Encoding

REFERENCES = {"GPT-2": "gpt2", "GPT-4": "cl100k_base"}  # name on the card -> name in tiktoken
SAMPLES = ("news", "korean", "code", "math", "science")  # scripts/samples/*.txt, written for this
SPLIT_CHARS = 4_000_000  # of each split of the corpus, about
PATIENCE = 30  # seconds to wait for the download of a vocabulary


@options()
class Config(TokenizerSettings):
    """Compare the tokenizer with those of GPT-2 and GPT-4."""


def load_reference(name: str) -> Encoding | str:
    """Return a vocabulary of tiktoken, from its cache or downloaded; else the reason why it is not available."""
    import tiktoken

    try:
        # tiktoken downloads without a time limit; the thread does not keep the process alive.
        with ThreadPool(1) as pool:
            return pool.apply_async(tiktoken.get_encoding, [name]).get(PATIENCE)
    except TimeoutError:
        reason = f"no answer within {PATIENCE:g} s"
    except (OSError, ValueError) as error:  # no network, or a file with another hash
        reason = type(error).__name__
    return f"{name} was not downloaded ({reason}): connect to the network, or set TIKTOKEN_CACHE_DIR to its folder"


def comparison(label: str, reference: Encoding | str, texts: dict[str, list[str]], ours: dict[str, int]) -> Record:
    """Return the table for the card. A missing reference has dashes, and the reason below the table.

    label: name of the reference. texts: name -> documents. ours: name -> tokens of our tokenizer.
    """
    rows = []
    for name, documents in texts.items():
        # Bytes, because characters need one byte in English and three in Korean.
        size = sum(len(text.encode()) for text in documents)
        tokens = ratio = difference = None
        if not isinstance(reference, str):
            tokens = sum(map(len, reference.encode_ordinary_batch(documents)))
            ratio = size / tokens
            difference = (tokens - ours[name]) / tokens  # above 0: ours needs fewer tokens
        rows.append([name, size, tokens, ratio, ours[name], size / ours[name], difference])
    columns = (
        f"Text Type | Bytes:d | {label} Tokens:d | {label} Ratio:.2f"
        " | Ours Tokens:d | Ours Ratio:.2f | Relative Diff %:+.1%"
    )
    return table_of(f"Comparison with {label}", columns, rows, note=reference if isinstance(reference, str) else "")


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
    # Documents are encoded one by one, without bos, like the references do.
    ours = {name: len(tokenizer.core.encode_batch(documents)[0]) for name, documents in texts.items()}
    for label, name in REFERENCES.items():
        outcome.tables.append(comparison(label, load_reference(name), texts, ours))
    outcome.add_artifact(path)
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
