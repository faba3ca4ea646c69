"""Train the tokenizer: byte pair encoding, which merges the most frequent pair of tokens, again and again.

python -m scripts.tok_train --vocab-size=65536 --max-chars=2e9 --data=FOLDER
"""

import time

from nanochat.config import Count, option, options, run_script
from nanochat.log import print0
from nanochat.metrics import text_label
from nanochat.outcome import Outcome
from nanochat.paths import tokenizer_file
from nanochat.settings import BEYOND_VOCABULARY, LEAST_VOCABULARY, TokenizerSettings

BEYOND_RUST = 1 << 63  # the trainer counts in 64 bits, one of them for the sign


@options("data")
class Config(TokenizerSettings):
    """Train the tokenizer on your own text or on a named corpus."""

    max_chars: Count = option(2_000_000_000, "characters to read in total", least=1, below=BEYOND_RUST)
    doc_cap: Count = option(10_000, "characters to read of each document", least=1, below=BEYOND_RUST)
    vocab_size: Count = option(
        65_536, "bytes, merges and special tokens together", least=LEAST_VOCABULARY, below=BEYOND_VOCABULARY
    )
    threads: Count = option(0, "threads (0: all cores)", below=BEYOND_RUST, in_card=False)


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus
    from nanochat.tokenizer import Tokenizer

    outcome = Outcome.begin("tok_train", config.tag, config)
    path = tokenizer_file(config.tag)
    corpus = open_corpus(config.data)
    print0(f"tok_train: {config.vocab_size:,} tokens from up to {config.max_chars:,} characters of {corpus.name}")

    start = time.monotonic()
    tokenizer = Tokenizer.train(
        corpus.batches("train"),
        config.vocab_size,
        max_chars=config.max_chars,
        doc_cap=config.doc_cap,
        threads=config.threads,
    )
    train_time = time.monotonic() - start

    data = corpus.describe()
    # Without machine and time: the same text and settings give the same file.
    settings = {name: getattr(config, name) for name in outcome.card}
    content_hash = tokenizer.save(path, {**settings, "data": data})
    lengths = tokenizer.token_lengths()
    lengths = lengths[lengths > 0]  # special tokens stand for no text
    outcome.metrics = {
        "train_time": train_time,
        "num_special_tokens": len(tokenizer.special_tokens),
        "token_bytes_min": lengths.min().item(),
        "token_bytes_max": lengths.max().item(),
        "token_bytes_mean": lengths.mean().item(),
        "token_bytes_std": lengths.std().item(),
        "vocab_size_reached": tokenizer.vocab_size,  # a small folder may have too few pairs to merge
        "data": text_label(data),
        "tokenizer_hash": content_hash,
    }
    outcome.add_artifact(path)
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
