"""Instructions that a program can check: the 25 kinds of IFEval (arXiv 2311.07911), and its prompts as a task.

An answer is right if it follows all instructions of its prompt as they are written (the paper's strict accuracy). Other
tasks use `check` with instructions of their own. CHECKS has the kinds; their names and values are the data set's.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, cast

from nanochat.errors import UserError
from nanochat.protocols import Conversation
from tasks.common import Answered, Task, exchange

Values = Mapping[str, Any]  # what an instruction is about
Check = Callable[[str, Values], bool]

# The words of an answer, and the end of its sentences: . ! or ? before a space, or a full stop of CJK.
WORD = re.compile(r"\w+")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])")
BULLET = re.compile(r"^\s*(?:\*[^*]|-).*$", re.MULTILINE)
HIGHLIGHT = re.compile(r"(?<!\*)\*([^\n*]+)\*(?!\*)|\*\*([^\n*]+)\*\*")
TITLE = re.compile(r"<<[^\n]+?>>")
PLACEHOLDER = re.compile(r"\[.*?\]")
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

# Scripts by language, for those that a script tells; the others are told by their most frequent words.
SCRIPTS = {
    **dict.fromkeys(("hi", "mr", "ne"), "\u0900-\u097f"),
    **dict.fromkeys(("ar", "fa", "ur"), "\u0600-\u06ff"),
    **dict.fromkeys(("ru", "bg", "uk"), "\u0400-\u04ff"),
    "ml": "\u0d00-\u0d7f",
    "bn": "\u0980-\u09ff",
    "pa": "\u0a00-\u0a7f",
    "gu": "\u0a80-\u0aff",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "kn": "\u0c80-\u0cff",
    "th": "\u0e00-\u0e7f",
    "he": "\u0590-\u05ff",
    "el": "\u0370-\u03ff",
    "ko": "\uac00-\ud7a3",
    "ja": "\u3040-\u30ff\u4e00-\u9fff",
    "zh": "\u4e00-\u9fff",
}
FREQUENT = {
    "en": "the of and to in is that for it with as was on be are this you not",
    "de": "der die und das ist nicht ein eine zu den mit von auf für sich auch dem",
    "fr": "le la les de des et est un une que dans pour pas qui sur vous nous du",
    "es": "el los las de que y en un una es por con para se no su como del",
    "it": "il di che e la un una per non con sono del della gli le si è anche",
    "pt": "o os de que e do da em um uma para com não as se na no por",
    "vi": "và của là có được cho không trong một những các với người này để",
    "pl": "w na z się nie to jest do że jak o ale po co czy dla od są przez",
    "fi": "ja on ei se että hän oli ovat mutta kun niin joka tai myös",
    "sw": "na ya wa kwa ni katika za la kuwa hii hiyo yake kama lakini",
}


def compare(number: int, relation: str, limit: int) -> bool:
    """Return True if a number has its relation to a limit, as IFEval writes them."""
    if relation not in ("at least", "less than"):
        raise UserError(f"the relation {relation!r} is neither 'at least' nor 'less than'")
    return number >= limit if relation == "at least" else number < limit


def words_of(text: str) -> list[str]:
    return WORD.findall(text)


def count_sentences(text: str) -> int:
    return sum(bool(WORD.search(part)) for part in SENTENCE_END.split(text))


def count_keyword(text: str, keyword: str) -> int:
    """Return how often a keyword occurs, also within a word, in upper or lower case."""
    return text.lower().count(keyword.lower())


def has_word(text: str, word: str) -> bool:
    """Return True if a text has a word, by itself, in upper or lower case."""
    return bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def paragraphs(text: str, mark: str) -> list[str]:
    """Return the parts of a text between marks; an empty one at the beginning or at the end is none."""
    found = [part.strip() for part in re.split(mark, text)]
    return found[not found[0] : len(found) - (len(found) > 1 and not found[-1])]


def is_language(text: str, language: str) -> bool:
    """Return True if most letters are of a language's script, or most of its frequent words of that language."""
    if language in SCRIPTS:
        letters = re.findall(r"[^\W\d_]", text)
        own = [letter for letter in letters if re.match(f"[{SCRIPTS[language]}]", letter)]
        has_kana = bool(re.search("[\u3040-\u30ff]", text))  # Japanese has both, Chinese the other alone
        return len(own) > len(letters) / 2 and (language not in ("ja", "zh") or has_kana == (language == "ja"))
    if language not in FREQUENT:
        raise UserError(f"no rule tells the language {language!r}")
    words = [word.lower() for word in words_of(text)]
    counts = {name: sum(word in frequent.split() for word in words) for name, frequent in FREQUENT.items()}
    return counts[language] == max(counts.values()) and counts[language] > 0


def is_json(text: str) -> bool:
    """Return True for JSON, alone or as the only fenced block."""
    text = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def has_first_word(text: str, values: Values) -> bool:
    """Return True if a text has so many paragraphs, and the right word begins one: up to a mark, without quotes."""
    parts = text.split("\n\n")
    number = values["nth_paragraph"]
    if sum(bool(part.strip()) for part in parts) != values["num_paragraphs"] or number > values["num_paragraphs"]:
        return False
    words = parts[number - 1].split()
    found = re.match(r"['\"]*([^.,?!'\"]*)", words[0]) if words else None
    return found is not None and found[1].lower() == values["first_word"].lower()


def has_two_responses(text: str) -> bool:
    parts = paragraphs(text, r"\*{6}")
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def repeats_prompt(text: str, values: Values) -> bool:
    return text.strip().lower().startswith(values["prompt_to_repeat"].strip().lower())


def is_quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def ends_with(text: str, phrase: str) -> bool:
    return text.strip().strip('"”').lower().endswith(phrase.strip().lower())


def has_sections(text: str, values: Values) -> bool:
    return len(re.findall(rf"{re.escape(values['section_spliter'])}\s?\d+", text)) >= values["num_sections"]


def has_postscript(text: str, marker: str) -> bool:
    """Return True if a text has the marker, P.S. also with spaces between its letters."""
    letters = r"\s?".join(re.escape(sign) for sign in marker.strip() if not sign.isspace())
    return bool(re.search(letters, text, re.IGNORECASE))


CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, v: all(count_keyword(text, word) for word in v["keywords"]),
    "keywords:frequency": lambda text, v: compare(count_keyword(text, v["keyword"]), v["relation"], v["frequency"]),
    "keywords:forbidden_words": lambda text, v: not any(has_word(text, word) for word in v["forbidden_words"]),
    "keywords:letter_frequency": lambda text, v: compare(
        text.lower().count(v["letter"].lower()), v["let_relation"], v["let_frequency"]
    ),
    "language:response_language": lambda text, v: is_language(text, v["language"]),
    "length_constraints:number_sentences": lambda text, v: compare(
        count_sentences(text), v["relation"], v["num_sentences"]
    ),
    "length_constraints:number_paragraphs": lambda text, v: (
        len(paragraphs(text, r"\s?\*\*\*\s?")) == v["num_paragraphs"] and all(paragraphs(text, r"\s?\*\*\*\s?"))
    ),
    "length_constraints:number_words": lambda text, v: compare(len(words_of(text)), v["relation"], v["num_words"]),
    "length_constraints:nth_paragraph_first_word": has_first_word,
    "detectable_content:number_placeholders": lambda text, v: len(PLACEHOLDER.findall(text)) >= v["num_placeholders"],
    "detectable_content:postscript": lambda text, v: has_postscript(text, v["postscript_marker"]),
    "detectable_format:number_bullet_lists": lambda text, v: len(BULLET.findall(text)) == v["num_bullets"],
    "detectable_format:constrained_response": lambda text, v: any(one in text for one in CONSTRAINED),
    "detectable_format:number_highlighted_sections": lambda text, v: (
        sum(bool("".join(found).strip()) for found in HIGHLIGHT.findall(text)) >= v["num_highlights"]
    ),
    "detectable_format:multiple_sections": has_sections,
    "detectable_format:json_format": lambda text, v: is_json(text),
    "detectable_format:title": lambda text, v: any(found.strip("<> \t") for found in TITLE.findall(text)),
    "combination:two_responses": lambda text, v: has_two_responses(text),
    "combination:repeat_prompt": repeats_prompt,
    "startend:end_checker": lambda text, v: ends_with(text, v["end_phrase"]),
    "startend:quotation": lambda text, v: is_quoted(text),
    "change_case:capital_word_frequency": lambda text, v: compare(
        sum(word.isupper() for word in words_of(text)), v["capital_relation"], v["capital_frequency"]
    ),
    "change_case:english_capital": lambda text, v: text.isupper(),
    "change_case:english_lowercase": lambda text, v: text.islower(),
    "punctuation:no_comma": lambda text, v: "," not in text,
}


class Instruction(TypedDict):
    """One of IFEval's kinds, and what it is about."""

    kind: str
    values: Values


class CheckedConversation(Conversation):
    """A prompt with the instructions that its answer has to follow."""

    instructions: list[Instruction]


def check(text: str, instruction: Instruction) -> bool:
    """Return True if a text follows an instruction; a UserError for a kind or a value that is not known."""
    kind, values = instruction["kind"], instruction["values"]
    if kind not in CHECKS:
        raise UserError(f"{kind!r} is none of IFEval's kinds of instructions")
    try:
        return bool(text.strip()) and CHECKS[kind](text, values)
    except KeyError as error:
        raise UserError(f"the instruction {kind} lacks {error.args[0]}") from None


class FollowedInstructions(Task):
    """Prompts whose answers are checked by programs. A row is a prompt, kinds of instructions, and their values."""

    has_answers = False

    def conversation(self, prompt: str, kinds: list[str], values: list[Values]) -> CheckedConversation:
        if len(kinds) != len(values):
            raise UserError(f"{len(kinds)} instructions have {len(values)} dictionaries of values")
        found: list[Instruction] = [
            # In a table every row has the columns of all kinds.
            {"kind": kind, "values": {name: value for name, value in own.items() if value is not None}}
            for kind, own in zip(kinds, values, strict=True)
        ]
        for one in found:  # now, and not once all answers are there
            check("text", one)
        return {**exchange(prompt, ""), "instructions": found}

    def evaluate_all(self, answers: Answered) -> list[bool]:
        return [
            all(check(text, one) for one in cast("CheckedConversation", conversation)["instructions"])
            for conversation, text in answers
        ]

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        [verdict] = self.evaluate_all([(conversation, completion)])
        return verdict
