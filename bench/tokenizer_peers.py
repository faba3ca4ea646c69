"""What each tokenizer package is asked, in a process of its own environment, which has nothing of ours.

To add a peer, write one function `Job -> (what is timed, facts about its result)` and one entry in TRAINERS or
ENCODERS. Adapters use public interfaces only; the text is read and the encoder built before the clock starts.
"""

import base64
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from nanochat.errors import UserError

OWN_VOCABULARY_BYTES = 10_000_000  # text that a peer which cannot load a vocabulary learns its own from
SEPARATOR = b"<|endoftext|>"  # between documents, for peers that take one buffer


@dataclass(frozen=True)
class Job:
    """What a child has to do."""

    texts: str  # parquet file with a column `text`
    corpus: str  # the same, always ordinary text
    pattern: str
    threads: int = 1
    vocab: int = 0  # training: 256 bytes + merges
    ranks: str = ""  # encoding: a tiktoken file of the vocabulary


Prepared = tuple[Callable[[], Any], Callable[[Any], dict]]  # what is timed, and the facts about its result


@dataclass(frozen=True)
class Peer:
    package: str  # the distribution that must be installed
    prepare: Callable[[Job], Prepared]
    note: str = ""


def measure(work: str, name: str, fields: dict[str, Any]):
    """Prepare a peer's work. fields: of the Job."""
    job = Job(**fields)
    # For peers that take no number of threads; those that count the cores count these.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    return WORKS[work][name].prepare(job)


def versions():
    return {found.metadata["Name"]: found.version for found in metadata.distributions()}


# ---- what all adapters use ----


def read_arrow(path: str):
    from pyarrow import parquet

    return parquet.read_table(path, columns=["text"])["text"].chunks


def read_texts(path: str):
    from pyarrow import parquet

    batches = parquet.ParquetFile(path).iter_batches(columns=["text"])
    return [text for batch in batches for text in batch.column(0).to_pylist()]


def read_ranks(path: str):
    return [base64.b64decode(line.split()[0]) for line in Path(path).read_bytes().splitlines()]


def write_ranks(path: str, tokens: Iterable[bytes]) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    Path(path).write_text("".join(lines))


def write_vocabulary(tokenizer: Any, folder: Path) -> None:
    """A tokenizer of ours in two files: as it is, and with its tokens for `read_vocabulary`."""
    tokenizer.save(folder / "tokenizer.json")
    count = tokenizer.vocab_size - len(tokenizer.special_tokens)
    write_ranks(folder / "ranks", map(tokenizer.core.token_bytes, range(count)))
    (folder / "rest.json").write_text(json.dumps([tokenizer.core.pattern, tokenizer.special_tokens]))


def read_vocabulary(folder: str):
    """The encoding that tiktoken makes of it."""
    return tiktoken_encoding(read_ranks(f"{folder}/ranks"), *json.loads(Path(folder, "rest.json").read_text()))


def fingerprint(rows: Iterable):
    """A hash of all ids in order, as uint32."""
    import numpy as np

    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.asarray(row, dtype=np.uint32).tobytes())
    return {"ids": digest.hexdigest()}


def byte_level_bpe(model: Any, pattern: str):
    """A `tokenizers.Tokenizer` that splits by `pattern` and works on bytes."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    # For Oniguruma, where `{1,3}+` is not possessive and `$` matches before a newline. Nothing in GPT-4-style patterns
    # can backtrack into another match, so dropping the possessives changes no split. Not after any brace: the one of
    # `\p{L}+` closes a class, and its plus is the repeat itself.
    pattern = re.sub(r"([?*+]|\{\d+(?:,\d*)?\})\+", r"\1", pattern).replace("$", r"\z")
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


# ---- training ----


def train_ours(job: Job, read: Callable[[str], list] = read_texts):
    import rustbpe

    source = read(job.texts)
    return lambda: rustbpe.train(source, job.vocab, threads=job.threads), lambda merges: {"merges": len(merges)}


def train_gigatoken(job: Job):
    import gigatoken

    data = SEPARATOR.join(text.as_buffer().to_pybytes() for chunk in read_arrow(job.texts) for text in chunk)
    run = partial(gigatoken.train_bpe, data, job.vocab, [], tie_breaking="raw_token_ids", separator=SEPARATOR)
    return run, lambda result: {"merges": len(result[1])}


def train_rustbpe(job: Job):
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    texts = read_texts(job.texts)
    run = partial(tokenizer.train_from_iterator, iter(texts), job.vocab, pattern=job.pattern)
    return run, lambda _: {"merges": tokenizer.vocab_size - 256}


def train_tokenizers(job: Job):
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = byte_level_bpe(models.BPE(), job.pattern)
    texts = read_texts(job.texts)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=job.vocab, show_progress=False, initial_alphabet=alphabet)
    run = partial(tokenizer.train_from_iterator, iter(texts), trainer)
    return run, lambda _: {"merges": tokenizer.get_vocab_size() - 256}


def train_sentencepiece(job: Job):
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    lines = [line for text in read_texts(job.texts) for line in text.split("\n") if line]
    model = io.BytesIO()
    options = {"model_type": "bpe", "vocab_size": job.vocab, "hard_vocab_limit": False, "byte_fallback": True}
    options |= {"normalization_rule_name": "identity", "max_sentence_length": 1 << 30}
    options |= {"num_threads": job.threads, "minloglevel": 2, "sentence_iterator": iter(lines), "model_writer": model}

    def facts(_: None):
        return {"merges": SentencePieceProcessor(model_proto=model.getvalue()).vocab_size() - 256}

    return partial(SentencePieceTrainer.train, **options), facts


# ---- encoding ----


def encode_ours(job: Job, arrow: bool = False):
    import rustbpe

    tokenizer = rustbpe.Tokenizer.from_ranks(read_ranks(job.ranks), None, job.pattern)
    if arrow:
        import pyarrow

        run = partial(tokenizer.encode_arrow, pyarrow.concat_arrays(read_arrow(job.texts)), threads=job.threads)
    else:
        run = partial(tokenizer.encode_batch, read_texts(job.texts), threads=job.threads)
    return run, lambda result: fingerprint(result[:1])


def encode_gigatoken(job: Job, form: Callable[[str], Any] = str):
    import awkward
    import gigatoken

    if r"\p{N}{1,3}" not in job.pattern:
        raise UserError("gigatoken takes no split pattern but those it has by name")
    # Special tokens are left out everywhere: gigatoken would look for them in the text, `encode_ordinary` does not.
    tokenizer = gigatoken.Tokenizer.from_tiktoken(job.ranks, "cl100k", {})
    run = partial(tokenizer.encode_batch, [form(text) for text in read_texts(job.texts)], parallel=job.threads > 1)
    return run, lambda rows: fingerprint([awkward.to_numpy(awkward.flatten(rows))])


def encode_fastokens(job: Job):
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_tiktoken(job.ranks, pattern=job.pattern, special_tokens={})
    run = partial(tokenizer.encode_batch_flat, read_texts(job.texts))
    return run, lambda result: fingerprint([np.frombuffer(result[0], np.uint32)])


def tiktoken_encoding(tokens: Iterable[bytes], pattern: str, special: dict[str, int] | None = None):
    import tiktoken

    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special or {})


def encode_tiktoken(job: Job):
    encoding = tiktoken_encoding(read_ranks(job.ranks), job.pattern)
    return partial(encoding.encode_ordinary_batch, read_texts(job.texts), num_threads=job.threads), fingerprint


def encode_tiktoken_numpy(job: Job):
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    encoding = tiktoken_encoding(read_ranks(job.ranks), job.pattern)
    texts = read_texts(job.texts)

    def run():
        with ThreadPoolExecutor(job.threads) as pool:
            return np.concatenate(list(pool.map(partial(encoding.encode_to_numpy, disallowed_special=()), texts)))

    return run, lambda ids: fingerprint([ids])


def encode_tokenizers(job: Job):
    from tiktoken._educational import bpe_encode
    from tokenizers import models

    # GPT-2's byte-level alphabet: a letter for each byte.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = map(chr, itertools.count(256))
    letters = [chr(byte) if byte in printable else next(spare) for byte in range(256)]
    tokens = read_ranks(job.ranks)
    spelled = ["".join(letters[byte] for byte in token) for token in tokens]
    ranks = {}
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) > 1:  # the tokens before it leave the two parts that it was merged from
            left, right = bpe_encode(ranks, token, visualise=None)
            merges.append((spelled[left], spelled[right]))
        ranks[token] = rank
    vocab = {text: rank for rank, text in enumerate(spelled)}
    tokenizer = byte_level_bpe(models.BPE(vocab, merges), job.pattern)
    run = partial(tokenizer.encode_batch_fast, read_texts(job.texts), add_special_tokens=False)
    return run, lambda rows: fingerprint(row.ids for row in rows)


def encode_rustbpe(job: Job):
    import rustbpe

    corpus = read_texts(job.corpus)
    texts = read_texts(job.texts)
    tokenizer = rustbpe.Tokenizer()
    sizes = itertools.accumulate(len(text.encode()) for text in corpus)
    some = [text for text, end in zip(corpus, sizes, strict=True) if end <= OWN_VOCABULARY_BYTES]
    tokenizer.train_from_iterator(iter(some), 32768, pattern=job.pattern)

    def facts(rows: list[list[int]]):
        if lost := sum(tokenizer.decode(row) != text for row, text in zip(rows, texts, strict=True)):
            raise UserError(f"{lost} of {len(texts)} texts do not survive encoding")
        return {}  # no hash: another vocabulary

    return partial(tokenizer.batch_encode, texts), facts


# ---- vocabularies, made by our own environment ----


def cl100k_base(corpus: str, vocab: int, ranks: str):
    from tiktoken_ext import openai_public

    definition = openai_public.cl100k_base()
    write_ranks(ranks, sorted(definition["mergeable_ranks"], key=definition["mergeable_ranks"].get))
    return {"pattern": definition["pat_str"]}


def nanochat(corpus: str, vocab: int, ranks: str):
    import rustbpe

    tokenizer = rustbpe.Tokenizer(rustbpe.train(read_texts(corpus), vocab))
    write_ranks(ranks, (tokenizer.token_bytes(rank) for rank in range(tokenizer.vocab_size)))
    return {"pattern": tokenizer.pattern}


NOT_OURS = "the other package of our name"
TRAINERS = {
    "ours": Peer("nanochat-rustbpe", train_ours),
    "ours, Arrow": Peer("nanochat-rustbpe", partial(train_ours, read=read_arrow), "text stays in Arrow arrays"),
    "gigatoken": Peer("gigatoken", train_gigatoken, "GPT-2's split, it has no other; text as one bytes object"),
    "rustbpe": Peer("rustbpe", train_rustbpe, f"{NOT_OURS}; our split pattern"),
    "tokenizers": Peer("tokenizers", train_tokenizers, "our split pattern, through its Split"),
    "sentencepiece": Peer("sentencepiece", train_sentencepiece, "BPE with byte fallback, on lines, split at spaces"),
}
ENCODERS = {
    "ours": Peer("nanochat-rustbpe", encode_ours),
    "ours, Arrow": Peer("nanochat-rustbpe", partial(encode_ours, arrow=True), "encode_arrow"),
    "gigatoken": Peer("gigatoken", encode_gigatoken, "encode_batch of str into an awkward array"),
    "gigatoken, bytes": Peer("gigatoken", partial(encode_gigatoken, form=str.encode), "the same of bytes"),
    "fastokens": Peer("fastokens", encode_fastokens, "encode_batch_flat"),
    "tiktoken": Peer("tiktoken", encode_tiktoken, "encode_ordinary_batch, Python lists"),
    "tiktoken, numpy": Peer("tiktoken", encode_tiktoken_numpy, "encode_to_numpy in threads, then one array"),
    "tokenizers": Peer("tokenizers", encode_tokenizers, "encode_batch_fast, ids not yet lists"),
    "rustbpe": Peer("rustbpe", encode_rustbpe, f"{NOT_OURS}; batch_encode with 32768 tokens of its own, Python lists"),
}
VOCABULARIES = {"cl100k_base": cl100k_base, "nanochat": nanochat}
WORKS = {"train": TRAINERS, "encode": ENCODERS}
