"""The tokenizer in other programs' files, written and read: `tokenizers` and `transformers`, and `tiktoken`.

Ids are ours throughout. What differs: these programs can be told to read "<|bos|>" in a text as the token.
"""

import base64
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import rustbpe
from nanochat.export.polyglot import lines
from nanochat.paths import write_json, write_text
from nanochat.tokenizer import FORMAT, SPECIAL_TOKENS, ArtifactError, Tokenizer

BOS, END = "<|bos|>", "<|assistant_end|>"
PAD = "<|output_end|>"  # none is for padding alone; of this one nothing is lost, for no model learns to say it
RANKS, DESCRIPTION = "tokenizer.tiktoken", "tokenizer.json"  # of tiktoken's form
# Renders what nanochat/chat.py renders, in Jinja; neighbouring parts that are text become one.
CHAT_TEMPLATE = """\
{%- macro said(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'text' -%}
                {{- part.text -}}
            {%- elif part.type == 'python' -%}
                {{- '<|python_start|>' + part.text + '<|python_end|>' -}}
            {%- elif part.type == 'python_output' -%}
                {{- '<|output_start|>' + part.text + '<|output_end|>' -}}
            {%- else -%}
                {{- raise_exception('a part of content is text, python or python_output') -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set has_system = messages[0].role == 'system' -%}
{%- set turns = messages[1:] if has_system else messages -%}
{{- '<|bos|>' -}}
{%- for message in turns -%}
    {%- if message.role != ('user' if loop.index0 % 2 == 0 else 'assistant') -%}
        {{- raise_exception('user and assistant take turns, behind at most one system message') -}}
    {%- endif -%}
    {{- '<|' + message.role + '_start|>' -}}
    {%- if loop.first and has_system -%}
        {{- said(messages[0].content) + '\\n\\n' -}}
    {%- endif -%}
    {{- said(message.content) -}}
    {{- '<|' + message.role + '_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant_start|>' -}}
{%- endif -%}
"""


def letters() -> list[str]:
    """The letter by which byte-level vocabularies write each byte: itself where it can be seen, else from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(0x100 + unseen.index(byte)) for byte in range(256)]


def words(tokenizer: Tokenizer) -> list[str]:
    """Each id but those of special tokens, written in such letters; ValueError where two ids are the same bytes."""
    written = letters()
    size = tokenizer.vocab_size - len(tokenizer.special_tokens)
    found = ["".join(written[byte] for byte in tokenizer.core.token_bytes(rank)) for rank in range(size)]
    if len(set(found)) < size:
        twice = next(word for i, word in enumerate(found) if word in found[:i])
        raise ValueError(f"the tokenizer has two ids for {twice!r}, which no other program's file can hold: train anew")
    return found


def merges(tokenizer: Tokenizer, names: list[str]) -> list[tuple[str, str]]:
    return [(names[left], names[right]) for left, right in tokenizer.core.merges.tolist()]


# ---- tokenizers and transformers ----


def to_hf(tokenizer: Tokenizer) -> Any:
    """A `tokenizers.Tokenizer` that encodes as ours does, and asked for special tokens begins with <|bos|>."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    names = words(tokenizer)
    vocabulary = {name: rank for rank, name in enumerate(names)}
    hf = tokenizers.Tokenizer(models.BPE(vocabulary, merges(tokenizer, names)))
    split = pre_tokenizers.Split(tokenizers.Regex(tokenizer.core.pattern), "isolated")
    hf.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    hf.decoder = decoders.ByteLevel()
    specials = tokenizer.special_tokens
    added = [tokenizers.AddedToken(name, normalized=False) for name in sorted(specials, key=specials.get)]
    hf.add_special_tokens(added)
    begun = {"single": f"{BOS} $A", "pair": f"{BOS} $A {BOS}:1 $B:1", "special_tokens": [(BOS, specials[BOS])]}
    hf.post_processor = processors.TemplateProcessing(**begun)
    return hf


def plain_hf(hf: Any, texts: list[str]) -> list[list[int]]:
    """Ids of texts in which special tokens are plain text, from a `tokenizers.Tokenizer`."""
    hf.encode_special_tokens = True
    return [found.ids for found in hf.encode_batch(texts, add_special_tokens=False)]


def write_hf(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """tokenizer.json and tokenizer_config.json, chat template included."""
    to_hf(tokenizer).save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", about)


# ---- tiktoken ----


def write_tiktoken(tokenizer: Tokenizer, folder: Path) -> None:
    """The ranks in tiktoken's own form, and the rest of what `tiktoken.Encoding` takes as JSON."""
    words(tokenizer)  # which complains where bytes are there twice
    size = tokenizer.vocab_size - len(tokenizer.special_tokens)
    ranks = (base64.b64encode(tokenizer.core.token_bytes(rank)).decode() for rank in range(size))
    write_text(folder / RANKS, "".join(f"{token} {rank}\n" for rank, token in enumerate(ranks)))
    about = {"name": f"nanochat-{tokenizer.content_hash[:12]}", "pat_str": tokenizer.core.pattern}
    about |= {"special_tokens": tokenizer.special_tokens, "explicit_n_vocab": tokenizer.vocab_size}
    write_json(folder / DESCRIPTION, about)


def load_tiktoken(folder: Path) -> Any:
    """What `write_tiktoken` wrote, as a `tiktoken.Encoding`, by tiktoken's own reader."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    return tiktoken.Encoding(mergeable_ranks=load_tiktoken_bpe(str(folder / RANKS)), **about)


# ---- do they agree ----


def differing(tokenizer: Tokenizer, texts: Sequence[str], theirs: Iterable[list[int]]) -> list[str]:
    """Those of the texts for which another tokenizer has given other ids."""
    return [text for text, ids in zip(texts, theirs, strict=True) if tokenizer.encode(text) != ids]


def check(tokenizer: Tokenizer, texts: Sequence[str], theirs: Iterable[list[int]], what: str) -> str:
    """A sentence that all are the same; a ValueError names the first that is not."""
    if others := differing(tokenizer, texts, theirs):
        raise ValueError(f"{what} gives other ids than ours for {len(others):,} texts, the first is {others[0]!r}")
    return f"tokenizer: {what} and ours give the same ids for {len(texts):,} texts"


# ---- reading ----


def read(path: Path) -> Tokenizer:
    """A tokenizer from our own file, one of `tokenizers`, or tiktoken's ranks; ArtifactError says what is wrong.

    What others have written is compared with theirs before it is taken for the same.
    """
    try:
        content = path.read_bytes()
        if not content.lstrip().startswith(b"{"):
            return _from_ranks(_ranks(content), {"pat_str": rustbpe.DEFAULT_PATTERN})
        record = json.loads(content)
        if record.get("format") == FORMAT:
            return Tokenizer.load(path)
        if "pat_str" in record:
            return _from_ranks(_ranks((path.parent / RANKS).read_bytes()), record)
        return _from_hf(record)
    except ArtifactError:
        raise
    except OSError as error:
        raise ArtifactError(f"{error.filename} cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        forms = "our tokenizer.json, that of `tokenizers`, or tiktoken's ranks"
        raise ArtifactError(f"{path} is no vocabulary that can be read ({error!r}); take {forms}") from None


def _ranks(content: bytes) -> list[bytes]:
    """Tokens in the order of their ranks, from lines of base64 and a rank."""
    pairs = [line.split() for line in content.splitlines() if line]
    ranks = {int(rank): base64.b64decode(token, validate=True) for token, rank in pairs}
    if sorted(ranks) != list(range(len(pairs))):
        raise ValueError("its ranks do not count from 0 without gaps")
    return [ranks[rank] for rank in range(len(ranks))]


def _from_ranks(tokens: list[bytes], about: dict) -> Tokenizer:
    """Of each token the merge is the pair that its bytes come down to when only the tokens before it may merge."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    specials = about.get("special_tokens", {name: len(tokens) + i for i, name in enumerate(SPECIAL_TOKENS)})
    found = _built(tokens[:256], [_pair(token, ranks) for token in tokens[256:]], specials, about["pat_str"])
    texts = list(lines(SPECIAL_TOKENS))
    check(found, texts, found.to_tiktoken().encode_ordinary_batch(texts), "tiktoken")
    return found


def _pair(token: bytes, ranks: dict[bytes, int]) -> tuple[int, int]:
    parts, rank = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        if min(joined) >= rank:
            raise ValueError(f"token {rank} does not come down to two tokens before it")
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    left, right = parts
    return ranks[left], ranks[right]


def _from_hf(record: dict) -> Tokenizer:
    import tokenizers

    model, byte_of = record["model"], {letter: byte for byte, letter in enumerate(letters())}
    split, _ = record["pre_tokenizer"]["pretokenizers"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    ids = model["vocab"]
    if any(ids[left + right] != 256 + i for i, (left, right) in enumerate(pairs)):
        raise ValueError("its ids are not bytes, then merges in order")
    first = [bytes(byte_of[letter] for letter in name) for name in sorted(ids, key=ids.get)[:256]]
    specials = {one["content"]: one["id"] for one in record["added_tokens"]}
    found = _built(first, [(ids[left], ids[right]) for left, right in pairs], specials, split["pattern"]["Regex"])
    texts, hf = list(lines(SPECIAL_TOKENS)), tokenizers.Tokenizer.from_str(json.dumps(record))
    check(found, texts, plain_hf(hf, texts), "its file")
    return found


def _built(first: list[bytes], found: list[tuple[int, int]], specials: dict[str, int], pattern: str) -> Tokenizer:
    if first != [bytes([byte]) for byte in range(256)]:
        raise ValueError("its first 256 ids are not the bytes in order")
    names = sorted(specials, key=specials.get)
    if [specials[name] for name in names] != list(range(256 + len(found), 256 + len(found) + len(names))):
        raise ValueError("its special tokens do not come last, one after another")
    if missing := [name for name in SPECIAL_TOKENS if name not in specials]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return Tokenizer(rustbpe.Tokenizer(found, names, pattern))
