"""Filters for rows of chats.

A new filter is a function and a row in FILTERS; its settings are fields of FilterSettings.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from nanochat.chat import check_conversation, has_tool_turns, render_conversation, text_of
from nanochat.config import check_names, option, options
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.tokenizer import Tokenizer
from tracks.chatdata.contamination import Benchmarks
from tracks.chatdata.topics import TOPICS

Value = TypeVar("Value")

IMAGE = re.compile(
    r"(?i)!\[[^\]]*\]\(|<img\b|https?://\S+\.(?:png|jpe?g|gif|webp|svg|bmp)\b|"
    r"data:(?:image/[\w.+-]+|[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)+),"  # base64, parameters, or both
)
# Models decline at the start of an answer.
REFUSAL = re.compile(
    r"(?i)\s*(?:(?:(?:i['’]?m|i am) (?:very |so )?(?:sorry|afraid)|i apologi[sz]e)\b(?:[.!](?= i\b))?"
    r"[^.!?\n]{0,40}\b(?:cannot|can['’]t|unable|not able)\b|"
    r"(?:sorry[,.] )?(?:but )?i (?:cannot|can[’']t|am unable to|won[’']t) "
    r"(?:help|assist|provide|fulfill|comply|answer)\b|"
    r"as an? (?:ai|artificial intelligence|(?:large )?language model)\b|"
    r"(?:죄송|미안)(?:[^.!?\n]{0,60}|[^.!?\n]{0,20}[.!] [^.!?\n]{0,40}(?:도와|도움|답변|답해|제공)[^.!?\n]{0,10})"
    r"(?:수 없|수가 없|못합니다|못해요|어렵습니다)|"
    r"(?:저는 )?(?:ai|인공지능) ?(?:언어 ?)?모델(?:로서|이라|이기 때문|이므로))"
)
# A long last line that ends inside a sentence; lines of lists, tables, headings and quotes may.
CUT = re.compile(r"(?:^|\n)(?![ \t]*(?:[-*•|#>]|\d+[.)]))[^\n]{80,}[\w,;:(\[-]\s*\Z")
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
# First word of a letter's Unicode name -> language, the best-known one of the script.
SCRIPTS = {"LATIN": "en", "HANGUL": "ko", "HIRAGANA": "ja", "KATAKANA": "ja", "CJK": "zh", "CYRILLIC": "ru"}
SCRIPTS |= {"ARABIC": "ar", "DEVANAGARI": "hi", "THAI": "th", "GREEK": "el", "HEBREW": "he"}
LENGTHS = {"ko": 0.5, "ja": 0.45, "zh": 0.3}  # characters of a text, relative to other languages
FEW_LETTERS = 20  # too few to judge the script of an answer
LEAST_SHARE = 0.2  # of an answer's letters in the expected script
# Usual values of settings, which may have others by bucket.
MIN_TOKENS = "8"
MAX_TOKENS = "2048"
NEAR = "0.8"
NAME = r"[\w.-]+"  # of a bucket
ALL = "all"  # in place of a bucket: every one without a value of its own


@options("filters")
class FilterSettings:
    """The filters of chats."""

    filters: str = option(
        "",
        "filters in order, like turns,exact, or by bucket: 'all=turns,images,exact;daily=turns,exact' "
        "(default: all in tracks/chatdata/README.md)",
    )
    min_tokens: str = option(
        MIN_TOKENS, "shortest row, in tokens of the rendered conversation, or by bucket, like all=8,daily=2"
    )
    max_tokens: str = option(MAX_TOKENS, "longest row, in tokens of the rendered conversation, or by bucket")
    # Relative to the usual ratio of the two languages, see LENGTHS.
    max_ratio: str = option(
        "all=2",
        "maximum ratio of a translation's length to the expected length, by languages or bucket: all=2,en-ko=2.5,web=3",
    )
    languages: str = option("", "language of the answers in a bucket, like korean=ko (default: that of the prompt)")
    near: str = option(
        NEAR, "drop rows that are at least this similar to an earlier one, or by bucket, like all=0.8,web=0.9"
    )
    topics: bool = option(False, "give each row its topic: daily, code, science, medical or mathematics")
    split_topics: str = option(
        "", "buckets to split by topic, like web,forum or all: web becomes web-daily, web-code and so on"
    )

    def is_split(self, bucket: str) -> bool:
        """Return True if a bucket of the sources is split by topic."""
        return not {bucket, ALL}.isdisjoint(re.findall(NAME, self.split_topics))

    def origin(self, bucket: str) -> str:
        """Return the bucket of the sources that a bucket of the output is, or is a part of."""
        name, _, topic = bucket.rpartition("-")
        return name if topic in TOPICS and self.is_split(name) else bucket

    def for_bucket(self, values: Mapping[str, Value], bucket: str) -> Value | None:
        """Return the value that counts for a bucket: its own, else that of the bucket it is a part of, else of all."""
        for name in (bucket, self.origin(bucket), ALL):
            if name in values:
                return values[name]
        return None


@lru_cache
def pairs(text: str) -> dict[str, str]:
    """Return the pairs in a setting like `korean=ko,code=en`."""
    found = {}
    for word in filter(None, text.split(",")):
        match = re.fullmatch(rf"\s*({NAME})=(.+)", word)
        if not match or match[1] in found:
            raise UserError(f"{word} is not like NAME=VALUE, or has a NAME for the second time")
        found[match[1]] = match[2]
    return found


@lru_cache
def numbers(setting: str | float, usual: str) -> dict[str, float]:
    """Return the numbers in a setting by bucket: `all=8,daily=2`, or `8` and 8 for all. nan: not a number.

    usual: the number for all, where the setting has none.
    """
    text = str(setting)
    found = {}
    for bucket, value in ({ALL: usual} | (pairs(text) if "=" in text else {ALL: text})).items():
        try:
            found[bucket] = float(value)
        except ValueError:
            found[bucket] = math.nan
    return found


@lru_cache
def filter_lists(text: str) -> dict[str, list[str]]:
    """Return the filters by bucket, in the order in which they run: those over all rows come last.

    `turns,images` is for all buckets, and `all=turns,images;daily=turns` for daily another list. Without one for all it
    is all filters.
    """
    found = {}
    for word in filter(str.strip, text.split(";")):
        bucket, _, listed = word.rpartition("=")
        bucket = bucket.strip() or ALL
        names = re.findall(r"[\w-]+", listed)
        check_names("--filters:", names, FILTERS)
        if bucket in found or not names:
            raise UserError(f"--filters: {word} names no filter, or {bucket} stands there for the second time")
        found[bucket] = names
    found.setdefault(ALL, [*FILTERS])
    return {
        bucket: sorted(dict.fromkeys(names), key=lambda name: FILTERS[name] is None) for bucket, names in found.items()
    }


def letters(text: str) -> Counter[str]:
    """Return the number of letters in each language's script, in the prose of a text."""
    counts = Counter()
    for letter, count in Counter(CODE.sub("", text[:4000])).items():  # so many characters are enough to judge
        script = unicodedata.name(letter, "").partition(" ")[0]
        if letter.isalpha() and script in SCRIPTS:
            counts[SCRIPTS[script]] += count
    return counts


def language(text: str) -> str:
    """Return the language with the script of most letters; empty for a text without letters."""
    counts = letters(text)
    return max(counts, key=counts.__getitem__, default="")


class Row:
    """A conversation, with the figures that filters ask for. fault: a sentence if it is malformed.

    prompts, answers: in pairs, the last pair first. A malformed row has empty ones, and JSON as its text. languages,
    ratio: of a translation, like en-ko, and its length relative to the usual one; 0 without an original.
    """

    def __init__(self, value: Record, tokenizer: Tokenizer) -> None:
        self.bucket = value["bucket"]
        self.topic = value["topic"] if value.get("topic") in TOPICS else ""
        self.fault = ""
        self.languages = ""
        self.ratio = 0.0
        self.line = json.dumps(value, ensure_ascii=False, default=str) + "\n"
        self.text = self.line.encode(errors="replace").decode()
        self.ids = self.mask = []
        self.prompts = self.answers = [""]
        try:
            if self.text != self.line:
                raise UserError("half a surrogate pair is not text")
            if "fault" in value and not value["messages"]:  # a row that a task cannot read
                raise UserError(value["fault"])
            if not isinstance(value.get("original", ""), str):
                raise UserError("the original is not text")
            conversation = check_conversation(value)
            if has_tool_turns(conversation):
                raise UserError("turns of tools are not curated")
            self.ids, self.mask = render_conversation(conversation, tokenizer)
            texts = [*map(text_of, conversation["messages"])]
            if conversation["messages"][-1]["role"] != "assistant" or not all(map(str.strip, texts)):
                raise UserError("the last message is not an answer, or a message is empty")
        except UserError as error:
            self.fault = str(error)
        else:
            self.text = "\n".join(texts)
            # A system message, which may come before them, belongs to no pair.
            self.prompts = texts[-2::-2]
            self.answers = texts[:0:-2]
            original = value.get("original")
            prompt = self.prompts[-1]
            if original:
                before = language(original)
                after = language(prompt)
                self.languages = f"{before}-{after}"
                self.ratio = len(prompt) / len(original) / LENGTHS.get(after, 1) * LENGTHS.get(before, 1)


@dataclass(frozen=True)
class Context:
    """Everything that filters know besides the row."""

    settings: FilterSettings
    tokenizer: Tokenizer
    benchmarks: Benchmarks


# ---- the filters: True, or a name, for a row to drop ----


def number_for(setting: str, usual: str, settings: FilterSettings, bucket: str) -> float:
    """Return the number in a setting that counts for a bucket."""
    number = settings.for_bucket(numbers(setting, usual), bucket)
    assert number is not None  # there is always one for all
    return number


def is_short(row: Row, context: Context) -> bool:
    return len(row.ids) < number_for(context.settings.min_tokens, MIN_TOKENS, context.settings, row.bucket)


def is_long(row: Row, context: Context) -> bool:
    return len(row.ids) > number_for(context.settings.max_tokens, MAX_TOKENS, context.settings, row.bucket)


def off_length(row: Row, context: Context) -> bool:
    limits = pairs(context.settings.max_ratio)
    own = {name: limit for name, limit in limits.items() if name != ALL}
    most = float(context.settings.for_bucket(own, row.bucket) or limits.get(row.languages) or limits.get(ALL, "inf"))
    return row.ratio > 0 and not 1 / most <= row.ratio <= most


def wrong_script(row: Row, context: Context) -> bool:
    for prompt, answer in zip(row.prompts, row.answers, strict=True):
        expected = context.settings.for_bucket(pairs(context.settings.languages), row.bucket) or language(prompt)
        found = letters(answer)
        if expected and found.total() >= FEW_LETTERS and found[expected] < LEAST_SHARE * found.total():
            return True
    return False


# Name -> function (row, context). None: found over all rows together (store.py). README.md has a row for each.
FILTERS: dict[str, Callable[[Row, Context], object] | None] = {
    "turns": lambda row, _: row.fault,
    "images": lambda row, _: bool(IMAGE.search(row.text)),
    "short": is_short,
    "long": is_long,
    "ratio": off_length,
    "script": wrong_script,
    "refusals": lambda row, _: any(map(REFUSAL.match, row.answers)),
    "cut": lambda row, _: any(answer.count("```") % 2 or CUT.search(answer) for answer in row.answers),
    "contamination": lambda row, context: context.benchmarks.find(row.text),
    "exact": None,
    "near": None,
}


def chosen_filters(settings: FilterSettings, bucket: str = ALL) -> list[str]:
    """Return the names of a bucket's filters in the order in which they run: those over all rows come last."""
    chosen = settings.for_bucket(filter_lists(settings.filters), bucket)
    assert chosen is not None  # there is always a list for all
    return chosen


def buckets_with_rows(settings: FilterSettings, buckets: Collection[str]) -> list[str]:
    """Return the buckets of the output: those of the sources, and the parts in place of those that are split."""
    return [
        name
        for bucket in buckets
        for name in ([f"{bucket}-{topic}" for topic in TOPICS] if settings.is_split(bucket) else [bucket])
    ]


def least_similarity(settings: FilterSettings, bucket: str) -> float:
    """Return the similarity from which on the filter `near` drops a row of a bucket."""
    return number_for(settings.near, NEAR, settings, bucket)


def check_settings(settings: FilterSettings, buckets: Collection[str]) -> None:
    """Raise a UserError for filters, buckets and languages that do not exist, and for numbers that are not possible.

    buckets: of the sources. Settings may name those, and the parts of those that are split by topic.
    """
    check_names("--split-topics: the bucket", re.findall(NAME, settings.split_topics), [ALL, *buckets])
    parts = [f"{bucket}-{topic}" for bucket in buckets if settings.is_split(bucket) for topic in TOPICS]
    for part in parts:
        if part in buckets:
            raise UserError(f"--split-topics: a part would be called {part}, like a bucket of --sources: rename that")
    buckets = [*buckets, *parts]
    check_names("--filters: the bucket", filter_lists(settings.filters), [ALL, *buckets])
    languages = pairs(settings.languages)
    known = sorted({*SCRIPTS.values()})
    check_names("--languages: the bucket", languages, buckets)
    check_names("--languages: the language", languages.values(), known)
    one = f"({'|'.join(known)})"
    names = "|".join(map(re.escape, [ALL, *buckets]))
    if not re.fullmatch(rf"(\s*({names}|{one}-{one})=[1-9]\d*(\.\d+)?(,|$))*", settings.max_ratio):
        raise UserError(
            f"--max-ratio={settings.max_ratio} is not like all=2,en-ko=2.5, with ratios from 1 on"
            " for languages and buckets of --sources"
        )
    _check_numbers("--min-tokens", settings.min_tokens, numbers(settings.min_tokens, MIN_TOKENS), buckets, least=0)
    _check_numbers("--max-tokens", settings.max_tokens, numbers(settings.max_tokens, MAX_TOKENS), buckets, least=1)
    near = numbers(settings.near, NEAR)
    _check_numbers("--near", settings.near, near, buckets, least=0.5, below=1)


def _check_numbers(
    flag: str,
    setting: str,
    given: Mapping[str, float],
    buckets: Collection[str],
    least: float,
    below: float = math.inf,
) -> None:
    check_names(f"{flag}: the bucket", given, [ALL, *buckets])
    for value in given.values():
        if below == math.inf and not (least <= value < below and value == round(value)):
            raise UserError(f"{flag}={setting} is not like 8 or all=8,web=2, with whole numbers from {least} on")
        if not least <= value < below:  # nor is it nan
            raise UserError(f"{flag}={setting} is not like 0.8 or all=0.8,web=0.9, from {least} on and below {below}")
