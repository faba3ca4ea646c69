"""The child process of `bench.tokenizer`: one measurement of one tokenizer package, in that package's environment.

Run as a file, never imported there as part of a package: a peer's environment has nothing of ours. To add a peer, write
one function `Job -> (what is timed, facts about its result)` and one entry in TRAINERS or ENCODERS. Adapters use public
interfaces only; reading the text and building the encoder happen before the clock starts. Linux only: the number of
cores is limited by affinity, and peak memory is read from /proc.
"""

import base64
import hashlib
import io
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

OWN_VOCABULARY_BYTES = 10_000_000  # text that a peer which cannot load a vocabulary learns its own from
SEPARATOR = b"<|endoftext|>"  # between documents, for peers that take one buffer


class Job(NamedTuple):
    """What one child process has to do; travels as JSON on its command line."""

    work: str  # a key of WORKS, or of ANSWERS
    result: str  # the file to write the outcome to: some peers print to stdout
    name: str = ""  # a key of that table of WORKS
    texts: str = ""  # parquet file with a column `text`
    corpus: str = ""  # the same, always ordinary text
    threads: int = 1
    vocab: int = 0  # training: 256 bytes + merges
    ranks: str = ""  # encoding: a tiktoken file of the vocabulary
    pattern: str = ""


Prepared = tuple[Callable[[], Any], Callable[[Any], dict]]  # what is timed, and the facts about its result


class Peer(NamedTuple):
    package: str  # the distribution that must be installed
    prepare: Callable[[Job], Prepared]
    note: str = ""
    ours: bool = False


# ---- what all adapters use ----


def read_arrow(path: str) -> list:
    from pyarrow import parquet

    return parquet.read_table(path, columns=["text"])["text"].chunks


def read_texts(path: str) -> list[str]:
    from pyarrow import parquet

    batches = parquet.ParquetFile(path).iter_batches(columns=["text"])
    return [text for batch in batches for text in batch.column(0).to_pylist()]


def read_ranks(path: str) -> list[bytes]:
    return [base64.b64decode(line.split()[0]) for line in Path(path).read_bytes().splitlines()]


def write_ranks(path: str, tokens: Iterable[bytes]) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    Path(path).write_text("".join(lines))


def fingerprint(rows: Iterable) -> dict:
    """Count and hash of all ids in order, as uint32."""
    import numpy as np

    digest, count = hashlib.sha256(), 0
    for row in rows:
        ids = np.asarray(row, dtype=np.uint32)
        digest.update(ids.tobytes())
        count += ids.size
    return {"tokens": count, "ids": digest.hexdigest()}


def oniguruma(pattern: str) -> str:
    """The pattern for the Oniguruma engine, where `{1,3}+` is no possessive and `$` matches before a newline.

    Nothing in GPT-4-style patterns can backtrack into another match, so dropping the possessives changes no split.
    """
    # Not after any brace: the one of `\p{L}+` closes a class, and its plus is the repeat itself.
    return re.sub(r"([?*+]|\{\d+(?:,\d*)?\})\+", r"\1", pattern).replace("$", r"\z")


def merges_of(tokens: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The pair each token was merged from: its own bytes, merged by lower ranks until two parts are left."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            at = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], len(ranks)))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def byte_letters() -> list[str]:
    """The letter that GPT-2's byte-level alphabet writes for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = map(chr, itertools.count(256))
    return [chr(byte) if byte in printable else next(spare) for byte in range(256)]


# ---- training ----


def train_ours(job: Job, read: Callable[[str], list] = read_texts) -> Prepared:
    import rustbpe

    source = read(job.texts)
    return lambda: rustbpe.train(source, job.vocab, threads=job.threads), lambda merges: {"merges": len(merges)}


def train_ours_arrow(job: Job) -> Prepared:
    return train_ours(job, read_arrow)


def train_gigatoken(job: Job) -> Prepared:
    import gigatoken

    data = SEPARATOR.join(text.as_buffer().to_pybytes() for chunk in read_arrow(job.texts) for text in chunk)

    def run():
        return gigatoken.train_bpe(data, job.vocab, [], tie_breaking="raw_token_ids", separator=SEPARATOR)

    return run, lambda result: {"merges": len(result[1])}


def train_rustbpe(job: Job) -> Prepared:
    import rustbpe

    tokenizer, texts = rustbpe.Tokenizer(), read_texts(job.texts)

    def run():
        tokenizer.train_from_iterator(iter(texts), job.vocab, pattern=job.pattern)

    return run, lambda _: {"merges": tokenizer.vocab_size - 256}


def byte_level_bpe(model: Any, pattern: str) -> Any:
    """A `tokenizers.Tokenizer` that splits by `pattern` and works on bytes."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(oniguruma(pattern)), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def train_tokenizers(job: Job) -> Prepared:
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer, texts = byte_level_bpe(models.BPE(), job.pattern), read_texts(job.texts)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=job.vocab, show_progress=False, initial_alphabet=alphabet)

    def run():
        tokenizer.train_from_iterator(iter(texts), trainer)

    return run, lambda _: {"merges": tokenizer.get_vocab_size() - 256}


def train_sentencepiece(job: Job) -> Prepared:
    import sentencepiece

    lines = [line for text in read_texts(job.texts) for line in text.split("\n") if line]
    model = io.BytesIO()
    options = {"model_type": "bpe", "vocab_size": job.vocab, "hard_vocab_limit": False, "byte_fallback": True}
    options |= {"normalization_rule_name": "identity", "max_sentence_length": 1 << 30}
    options |= {"num_threads": job.threads, "minloglevel": 2}

    def run():
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)

    def facts(_):
        return {"merges": sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size() - 256}

    return run, facts


# ---- encoding ----


def encode_ours(job: Job) -> Prepared:
    import rustbpe

    tokenizer = rustbpe.Tokenizer.from_ranks(read_ranks(job.ranks), None, job.pattern)
    texts = read_texts(job.texts)
    return lambda: tokenizer.encode_batch(texts, threads=job.threads), lambda result: fingerprint(result[:1])


def encode_ours_arrow(job: Job) -> Prepared:
    import pyarrow

    import rustbpe

    tokenizer = rustbpe.Tokenizer.from_ranks(read_ranks(job.ranks), None, job.pattern)
    array = pyarrow.concat_arrays(read_arrow(job.texts))
    return lambda: tokenizer.encode_arrow(array, threads=job.threads), lambda result: fingerprint(result[:1])


def encode_gigatoken(job: Job, read: Callable[[str], Any] = read_texts) -> Prepared:
    import awkward
    import gigatoken

    if r"\p{N}{1,3}" not in job.pattern:
        raise ValueError("gigatoken takes no split pattern but those it has by name")
    # Special tokens are left out everywhere: gigatoken would look for them in the text, `encode_ordinary` does not.
    tokenizer = gigatoken.Tokenizer.from_tiktoken(job.ranks, "cl100k", {})
    texts = read(job.texts)
    parallel = job.threads > 1
    return (
        lambda: tokenizer.encode_batch(texts, parallel=parallel),
        lambda rows: fingerprint([awkward.to_numpy(awkward.flatten(rows))]),
    )


def encode_gigatoken_bytes(job: Job) -> Prepared:
    return encode_gigatoken(job, lambda path: [text.encode() for text in read_texts(path)])


def encode_fastokens(job: Job) -> Prepared:
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_tiktoken(job.ranks, pattern=job.pattern, special_tokens={})
    texts = read_texts(job.texts)
    return lambda: tokenizer.encode_batch_flat(texts), lambda result: fingerprint([np.frombuffer(result[0], np.uint32)])


def tiktoken_encoding(job: Job) -> Any:
    import tiktoken

    ranks = {token: rank for rank, token in enumerate(read_ranks(job.ranks))}
    return tiktoken.Encoding("bench", pat_str=job.pattern, mergeable_ranks=ranks, special_tokens={})


def encode_tiktoken(job: Job) -> Prepared:
    encoding, texts = tiktoken_encoding(job), read_texts(job.texts)
    return lambda: encoding.encode_ordinary_batch(texts, num_threads=job.threads), fingerprint


def encode_tiktoken_numpy(job: Job) -> Prepared:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    encoding, texts = tiktoken_encoding(job), read_texts(job.texts)

    def encode(text: str) -> np.ndarray:
        return encoding.encode_to_numpy(text, disallowed_special=())

    def run() -> np.ndarray:
        with ThreadPoolExecutor(job.threads) as pool:
            return np.concatenate(list(pool.map(encode, texts)))

    return run, lambda ids: fingerprint([ids])


def encode_tokenizers(job: Job) -> Prepared:
    from tokenizers import models

    letters, tokens, texts = byte_letters(), read_ranks(job.ranks), read_texts(job.texts)

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab = {spell(token): rank for rank, token in enumerate(tokens)}
    merges = [(spell(left), spell(right)) for left, right in merges_of(tokens)]
    tokenizer = byte_level_bpe(models.BPE(vocab, merges), job.pattern)
    return (
        lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False),
        lambda rows: fingerprint(row.ids for row in rows),
    )


def encode_rustbpe(job: Job) -> Prepared:
    import rustbpe

    size = itertools.accumulate(len(text.encode()) for text in read_texts(job.corpus))
    some = [text for text, end in zip(read_texts(job.corpus), size, strict=True) if end <= OWN_VOCABULARY_BYTES]
    tokenizer, texts = rustbpe.Tokenizer(), read_texts(job.texts)
    tokenizer.train_from_iterator(iter(some), 32768, pattern=job.pattern)

    def facts(rows: list[list[int]]) -> dict:
        lost = sum(tokenizer.decode(row) != text for row, text in zip(rows, texts, strict=True))
        if lost:
            raise ValueError(f"{lost} of {len(texts)} texts do not survive encoding")
        return {"tokens": sum(map(len, rows))}  # no hash: another vocabulary

    return lambda: tokenizer.batch_encode(texts), facts


# ---- vocabularies, made by our own environment ----


def cl100k_base(job: Job) -> dict:
    from tiktoken_ext import openai_public

    definition = openai_public.cl100k_base()
    write_ranks(job.ranks, sorted(definition["mergeable_ranks"], key=definition["mergeable_ranks"].get))
    return {"pattern": definition["pat_str"]}


def nanochat(job: Job) -> dict:
    import rustbpe

    tokenizer = rustbpe.Tokenizer(rustbpe.train(read_texts(job.corpus), job.vocab))
    write_ranks(job.ranks, (tokenizer.token_bytes(rank) for rank in range(tokenizer.vocab_size)))
    return {"pattern": tokenizer.pattern}


NOT_OURS = "the other package of our name"
TRAINERS = {
    "ours": Peer("rustbpe", train_ours, ours=True),
    "ours, Arrow": Peer("rustbpe", train_ours_arrow, "text stays in Arrow arrays", ours=True),
    "gigatoken": Peer("gigatoken", train_gigatoken, "GPT-2's split, it has no other; text as one bytes object"),
    "rustbpe": Peer("rustbpe", train_rustbpe, f"{NOT_OURS}; our split pattern"),
    "tokenizers": Peer("tokenizers", train_tokenizers, "our split pattern, through its Split"),
    "sentencepiece": Peer("sentencepiece", train_sentencepiece, "BPE with byte fallback, on lines, split at spaces"),
}
ENCODERS = {
    "ours": Peer("rustbpe", encode_ours, ours=True),
    "ours, Arrow": Peer("rustbpe", encode_ours_arrow, "encode_arrow", ours=True),
    "gigatoken": Peer("gigatoken", encode_gigatoken, "encode_batch of str into an awkward array"),
    "gigatoken, bytes": Peer("gigatoken", encode_gigatoken_bytes, "the same of bytes, made before the clock"),
    "fastokens": Peer("fastokens", encode_fastokens, "encode_batch_flat"),
    "tiktoken": Peer("tiktoken", encode_tiktoken, "encode_ordinary_batch, Python lists"),
    "tiktoken, numpy": Peer("tiktoken", encode_tiktoken_numpy, "encode_to_numpy in threads, then one array"),
    "tokenizers": Peer("tokenizers", encode_tokenizers, "encode_batch_fast, ids not yet lists"),
    "rustbpe": Peer("rustbpe", encode_rustbpe, f"{NOT_OURS}; batch_encode with 32768 tokens of its own, Python lists"),
}
VOCABULARIES = {"cl100k_base": cl100k_base, "nanochat": nanochat}


WORKS = {"train": TRAINERS, "encode": ENCODERS}


def versions(_: Job) -> dict:
    from importlib import metadata

    return {found.metadata["Name"]: found.version for found in metadata.distributions()}


def default_pattern(_: Job) -> dict:
    import rustbpe

    return {"pattern": rustbpe.DEFAULT_PATTERN}


def peak_memory() -> int:
    """Most memory this process ever held, in bytes."""
    # Not `getrusage`: its figure is inherited from the process that started this one.
    kilobytes = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert kilobytes, "Linux has this line for every process"
    return int(kilobytes[1]) * 1024


def measure(job: Job) -> dict:
    """Seconds and peak memory of one run, and the facts that its result is judged by."""
    run, facts = WORKS[job.work][job.name].prepare(job)
    Path(job.result).write_text("{}")  # a process that is ended from now on was ended at the work itself
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "memory": peak_memory()} | facts(result)


ANSWERS = {"versions": versions, "pattern": default_pattern} | VOCABULARIES


def main(job: Job) -> None:
    # For peers that take no number of threads; those that count the cores count these.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    outcome = measure(job) if job.work in WORKS else ANSWERS[job.work](job)
    Path(job.result).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Job(*json.loads(sys.argv[1])))
