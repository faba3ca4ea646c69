"""The tokenizer in files of other programs: written for `transformers`, read from `tiktoken`'s ranks.

Ids stay the same. One difference remains: other programs can read "<|bos|>" in a text as the special token.
"""

import base64
import itertools
import math
import random
from collections.abc import Mapping
from pathlib import Path

import rustbpe
from nanochat.errors import UserError
from nanochat.paths import read_json, write_json
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer

BOS = "<|bos|>"
END = "<|assistant_end|>"
PAD = "<|output_end|>"  # no token is for padding alone; no model is trained to write this one
# The same text as nanochat/chat.py renders, in Jinja. Neighbouring text parts of a message become one.
CHAT_TEMPLATE = """\
{%- macro rendered(content) -%}
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
        {{- rendered(messages[0].content) + '\\n\\n' -}}
    {%- endif -%}
    {{- rendered(message.content) -}}
    {{- '<|' + message.role + '_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant_start|>' -}}
{%- endif -%}
"""


# ---- texts to compare tokenizers on ----

# Pieces of text that tokenizers may split in different ways, separated by |.
PIECES = (
    # words of many scripts
    "All human beings| born free|Würde und Rechte|l'égalité|¿no?|IĞDIR'ın|świętość|người|Все люди|п'ять|άνθρωποι|մարդիկ"
    "|ადამიანი|בני האדם|الناس|می‌آیند|मनुष्यों|মানুষ|மனித|మానవ|มนุษย์ทั้งหลาย|သူတိုင်းသည်|ሰው ሁሉ|人人生而自由,"
    "|すべての人間は、|모든 인간은"
    # numbers, with digits of other scripts and digits that are not decimals
    "|7|42|1234567|2.5e-10|0x1F|٣٤٥|१२३|７８|²³½|ⅣⅫ|①⑩|𝟘𝟙|$9.99|50%|3 + 4 = 7"
    # blanks and control characters
    "| |  |    |\t|\t\t|\n|\n\n|\r\n| \n |\u00a0|\u3000|\u200b|\u0085|\v|\x01"
    # contractions, which patterns keep apart
    "|'s|'t|'re|'ve|'m|'ll|'d|'S|'RE|'vE|’s|''s|'x|'"
    # emoji of several code points, combining marks, private use, punctuation
    "|😀|👍🏽|👩‍💻|👨‍👩‍👧‍👦|🇰🇷|❤️|1️⃣|e\u0301|\u0301|\ue000|…|—|!!!|?!|«»|(|)"
    # code
    "|def f(x: int = 0) -> str:|    return f'{x:>8}'\n|++i) { a[i] += b[i]; }  // done|<a href=\"https://example.org/#top\">"
    "|$x=${y:-z}; ls -la|\\frac{1}{2}|snake_case CamelCase"
).split("|")


def sample_texts() -> list[str]:
    """Return texts of random pieces, always the same; special tokens occur as plain text."""
    rng = random.Random(8)
    pieces = [*PIECES, *SPECIAL_TOKENS]
    return ["".join(rng.choices(pieces, k=rng.randint(1, 20))) for _ in range(5000)]


# ---- byte-level vocabularies ----


def written_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return all tokens except the special ones, with a letter for each byte: a space is Ġ, a newline Ċ."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()  # the convention of GPT-2
    ranks = range(tokenizer.vocab_size - len(tokenizer.special_tokens))
    return ["".join(letters[byte] for byte in tokenizer.core.token_bytes(rank)) for rank in ranks]


def written_merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    # In the order of their ids, which is the order of priority.
    tokens = written_tokens(tokenizer)
    return [(tokens[left], tokens[right]) for left, right in tokenizer.bpe.merges.tolist()]


# ---- tokenizers and transformers ----


def write_hf(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with the chat template. context: in tokens.

    Where special tokens are added, a text begins with <|bos|>.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    # Byte-level BPE: split into words by the pattern, write bytes as letters, merge.
    vocabulary = {token: rank for rank, token in enumerate(written_tokens(tokenizer))}
    hf = tokenizers.Tokenizer(models.BPE(vocabulary, written_merges(tokenizer)))
    split = pre_tokenizers.Split(tokenizers.Regex(tokenizer.bpe.pattern), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in tokenizer.special_tokens])
    # $A is the text; the numbers after : are type ids, which our models ignore.
    hf.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS}:1 $B:1",
        special_tokens=[(BOS, tokenizer.special_tokens[BOS])],
    )
    hf.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": BOS,
        "eos_token": END,  # of an answer; generation_config.json also stops at BOS
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", settings)


# ---- reading ----


def read_tokenizer(path: Path) -> Tokenizer:
    """Read our tokenizer.json, or a file of tiktoken's ranks; ValueError for other files."""
    # JSON is our own format; lines of ranks begin with base64.
    if path.suffix == ".json":
        return Tokenizer.load(path)
    ranks: dict[bytes, int] = {}  # of the tokens so far
    merges: list[tuple[int, int]] = []
    try:
        for line in path.read_bytes().splitlines():
            word, number = line.split()  # such as `IHRoZQ== 262`
            token = base64.b64decode(word)
            rank = int(number)
            if rank >= 256:
                merges.append(merge_of(token, ranks))
            elif token != bytes([rank]):  # ours are in this order
                raise ValueError
            ranks[token] = rank
        return Tokenizer(rustbpe.Tokenizer(merges, SPECIAL_TOKENS, rustbpe.DEFAULT_PATTERN))
    except (ValueError, LookupError, TypeError):
        raise UserError(
            f"{path} is neither our tokenizer.json nor a file of tiktoken's ranks that begins with the bytes in order"
        ) from None


def merge_of(token: bytes, ranks: Mapping[bytes, int]) -> tuple[int, int]:
    """Return the ids of the two tokens that were merged into this one. ranks: of all tokens before it.

    BPE with those tokens alone leaves just these two: merge the pair of the lowest rank, the leftmost of equal ones, as
    long as there are more.
    """
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [left + right for left, right in itertools.pairwise(parts)]
        place = min(range(len(pairs)), key=lambda place: ranks.get(pairs[place], math.inf))
        if pairs[place] not in ranks:
            raise UserError(f"{token!r} is not made of two tokens before it")
        parts[place : place + 2] = [pairs[place]]
    left, right = parts  # ValueError for a token of one byte
    return ranks[left], ranks[right]


def read_hf(path: Path) -> Tokenizer:
    """Read a tokenizer.json that `write_hf` or `transformers` wrote; UserError for one of another kind."""
    try:
        written = read_json(path)
        ids = written["model"]["vocab"]
        merges = [(ids[left], ids[right]) for left, right in written["model"]["merges"]]
        special = {token["content"]: token["id"] for token in written["added_tokens"]}
        pattern = written["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        return Tokenizer(rustbpe.Tokenizer(merges, sorted(special, key=special.__getitem__), pattern))
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path} is not a tokenizer that tracks.export.export wrote") from None
