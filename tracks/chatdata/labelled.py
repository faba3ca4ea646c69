"""Rows of public data sets whose topics a language model has labelled, in topic_labels.tsv by data set and row.

The same model wrote the rules that these labels measure, and no person has labelled a row: how often both agree is an
upper bound of how often the rules would agree with a person.

The rows were drawn by `draw`, at random from each stratum, and half of each stratum is for tuning the rules: the other
half was labelled after the rules were written, and is for measuring. The texts are in the mirror alone (NANOCHAT_HUB).
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanochat.chat import messages, text_of
from nanochat.data.hub import HubFile, fetch
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import text_sha256
from tracks.chatdata.topics import TOPICS

LABELS = Path(__file__).parent / "topic_labels.tsv"
COLUMNS = ("data set", "row", "sha256", "stratum", "half", "topic")
HALVES = ("tune", "test")
SEED = 54
DIGITS = 12  # of the SHA-256 of a row's text


@dataclass(frozen=True)
class ChatSet:
    """A file of the mirror, and the columns with what is asked and what is answered; empty: it has `messages`."""

    file: HubFile
    asked: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


INSTRUCTION = ("instruction", "input")
SETS = {
    "alpaca": ChatSet(HubFile("data/train-00000-of-00001.parquet", "tatsu-lab/alpaca"), INSTRUCTION, ("output",)),
    "ko-alpaca": ChatSet(HubFile("data/train-00000-of-00001.parquet", "local/ko-alpaca-v1"), INSTRUCTION, ("output",)),
    "codegen": ChatSet(HubFile("codegen/train-00000-of-00001.parquet", "local/gpteacher"), INSTRUCTION, ("response",)),
    "roleplay": ChatSet(
        HubFile("roleplay/train-00000-of-00001.parquet", "local/gpteacher"), INSTRUCTION, ("response",)
    ),
    "korean-chatbot": ChatSet(
        HubFile("data/train-00000-of-00001.parquet", "local/korean-chatbot-data"), ("Q",), ("A",)
    ),
    "multiturn": ChatSet(HubFile("data/train-00000-of-00001.parquet", "local/multiturn-chat")),
    "click": ChatSet(
        HubFile("default/train/0000.parquet", "EunsuKim/CLIcK"), ("paragraph", "question", "choices"), ("answer",)
    ),
    "gsm8k": ChatSet(HubFile("main/train-00000-of-00001.parquet", "openai/gsm8k"), ("question",), ("answer",)),
    "arc-easy": ChatSet(
        HubFile("ARC-Easy/train-00000-of-00001.parquet", "allenai/ai2_arc"), ("question", "choices"), ("answerKey",)
    ),
}


@dataclass(frozen=True)
class Stratum:
    """Rows to draw: so many of each of the sets, among those in which what is asked matches a pattern."""

    name: str
    counts: dict[str, int]
    pattern: str = ""


# Most conversations of these sets are about daily life: the words, wider than any rule, find others more often.
STRATA = (
    Stratum(
        "any",
        {
            "alpaca": 36,
            "ko-alpaca": 36,
            "codegen": 24,
            "roleplay": 16,
            "korean-chatbot": 20,
            "multiturn": 20,
            "click": 16,
        },
    ),
    Stratum(
        "health",
        {"alpaca": 18, "ko-alpaca": 18},
        "health|disease|medic|doctor|hospital|patient|symptom|diet|nutri|body|pain|"
        "건강|병|의사|환자|치료|약|몸|통증|영양",
    ),
    Stratum(
        "nature",
        {"alpaca": 18, "ko-alpaca": 18},
        "scien|physic|chemi|biolog|energy|planet|animal|plant|cell|earth|space|climate|water|"
        "과학|물리|화학|생물|에너지|행성|동물|식물|세포|지구|우주|기후|물질",
    ),
    Stratum(
        "numbers",
        {"alpaca": 12, "ko-alpaca": 12},
        r"calculat|number|\bsum\b|average|solve|equation|how many|\d *[-+*/x×÷=] *\d|"
        "계산|숫자|합계|평균|방정식|수학|개수|확률",
    ),
    Stratum("exercises", {"gsm8k": 18, "arc-easy": 18}),
)


def read_set(name: str) -> list[Record]:
    """Return a data set's conversations in the order of its file."""
    import pyarrow.parquet as pq  # slow

    data = SETS[name]
    [path] = fetch([data.file])
    rows = pq.read_table(path).to_pylist()
    if not data.asked:
        return [{"messages": row["messages"]} for row in rows]
    return [{"messages": messages([_joined(row, data.asked), _joined(row, data.answered)])} for row in rows]


def _joined(row: Record, columns: Sequence[str]) -> str:
    """Return the text of cells, one below the other; empty ones are left out."""
    texts = []
    for column in columns:
        cell = row[column]
        if isinstance(cell, dict):  # choices of ARC
            cell = cell["text"]
        texts.append("\n".join(cell) if isinstance(cell, list) else cell)
    return "\n\n".join(filter(None, texts))


def text_of_row(row: Record) -> str:
    """Return all that is said in a conversation."""
    return "\n".join(map(text_of, row["messages"]))


def draw() -> Iterator[Record]:
    """Yield the rows to label, with their `data set`, `row`, `sha256`, `stratum` and `half`."""
    pool = {name: read_set(name) for name in SETS}
    taken: set[tuple[str, int]] = set()
    for stratum in STRATA:
        for name, count in stratum.counts.items():
            shuffled = random.Random(f"{SEED} {stratum.name} {name}").sample(range(len(pool[name])), len(pool[name]))
            fitting = [
                number
                for number in shuffled
                if (name, number) not in taken
                and re.search(stratum.pattern, text_of(pool[name][number]["messages"][0]), re.IGNORECASE)
            ]
            for place, number in enumerate(fitting[:count]):
                taken.add((name, number))
                row = pool[name][number]
                yield row | {
                    "data set": name,
                    "row": number,
                    "sha256": text_sha256(text_of_row(row))[:DIGITS],
                    "stratum": stratum.name,
                    "half": HALVES[place % 2],
                }


def read_labels() -> list[dict[str, str]]:
    """Return the lines of the file with the labels."""
    head, *lines = LABELS.read_text(encoding="utf-8").splitlines()
    assert tuple(head.split("\t")) == COLUMNS
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]


def labelled_rows() -> list[Record]:
    """Return the labelled conversations, with their `topic` as `label`; UserError if the mirror has other rows."""
    labels = read_labels()
    pool = {name: read_set(name) for name in dict.fromkeys(label["data set"] for label in labels)}
    found = []
    for label in labels:
        rows = pool[label["data set"]]
        number = int(label["row"])
        row = rows[number] if number < len(rows) else {"messages": []}
        if text_sha256(text_of_row(row))[:DIGITS] != label["sha256"]:
            raise UserError(f"row {number} of {SETS[label['data set']].file} is not the one that was labelled")
        assert label["topic"] in TOPICS
        found.append(row | {"label": label["topic"], "half": label["half"], "stratum": label["stratum"]})
    return found
