"""How often topics by rules, or by a teacher, are those that a language model gave 300 conversations.

python -m tracks.chatdata.agreement                                          the rules
python -m tracks.chatdata.agreement --teacher=http://host:port/v1 --teacher-model=NAME
python -m tracks.chatdata.agreement --draw=rows.tsv                          write the rows with their texts, to read

The model that labelled them also wrote the rules, so the agreement of the rules is an upper bound: a person is expected
to agree with them less often. The conversations are in the mirror of public data sets, NANOCHAT_HUB.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nanochat.config import option, options, run_script
from nanochat.log import Record, print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import write_text
from nanochat.settings import TagSettings
from nanochat.statistics import Estimate, mean_estimate
from tracks.chatdata.teacher import Teacher, TeacherSettings, topic
from tracks.chatdata.topics import TOPICS, topic_of_row


@options("labels")
class Config(TeacherSettings, TagSettings):
    """Compare topics with those that a language model, which also wrote the rules, gave 300 conversations."""

    tag = option("", "name of the comparison, and of its folder (default: rules, or teacher)")
    draw: str = option("", "write the conversations to label to this file, with their texts, and compare nothing")


def kappa(pairs: Sequence[tuple[str, str]]) -> Estimate:
    """Return Cohen's kappa of two labels each, with its large-sample standard error.

    0 is the agreement of two who know only how frequent the labels are, and 1 is full agreement.
    """
    count = len(pairs)
    agreed = sum(one == other for one, other in pairs) / count
    first = Counter(one for one, _ in pairs)
    second = Counter(other for _, other in pairs)
    by_chance = sum(first[label] * second[label] for label in first) / count**2
    if by_chance == 1:  # one label alone
        return Estimate(math.nan, math.nan)
    error = math.sqrt(agreed * (1 - agreed) / count) / (1 - by_chance)
    return Estimate((agreed - by_chance) / (1 - by_chance), error)


def score_table(rows: Sequence[Record]) -> Record:
    """Return agreement for each half, of all rows and of those that were drawn without search words."""
    cells = []
    for half in ("tune", "test"):
        for name, strata in (("all", None), ("any", ("any",))):
            pairs = [
                (row["label"], row["topic"])
                for row in rows
                if row["half"] == half and (strata is None or row["stratum"] in strata)
            ]
            right = mean_estimate([float(label == found) for label, found in pairs])
            cells.append((half, name, len(pairs), str(right), str(kappa(pairs))))
    return table_of("Agreement with labels of a language model", "Half | Rows | Count:,d | Accuracy | Kappa", cells)


def confusion_table(rows: Sequence[Record], half: str) -> Record:
    """Return how many rows with each label have each topic."""
    counts = Counter((row["label"], row["topic"]) for row in rows if row["half"] == half)
    found = [*TOPICS, *sorted({topic for _, topic in counts} - {*TOPICS})]  # a teacher may have no answer
    cells = [[label, *(counts[label, topic] for topic in found)] for label in TOPICS]
    return table_of(f"Half {half}: label, and topic found", " | ".join(["Label", *found]), cells)


def write_rows(path: Path) -> None:
    """Write the rows to label, a line each, with their texts in place of a topic."""
    from tracks.chatdata.labelled import COLUMNS, draw, text_of_row

    lines = ["\t".join([*COLUMNS[:-1], "text"])]
    for row in draw():
        text = " ".join(text_of_row(row).split())
        lines.append("\t".join([*(str(row[column]) for column in COLUMNS[:-1]), text]))
    write_text(path, "".join(f"{line}\n" for line in lines))
    print0(f"{path}: {len(lines) - 1} conversations")


def tag_of(config: Config) -> str:
    return config.tag or ("teacher" if config.teacher else "rules")


def main(config: Config) -> None:
    if config.draw:
        write_rows(Path(config.draw))
        return
    from tracks.chatdata.labelled import labelled_rows

    outcome = Outcome.begin("agreement", tag_of(config), config)
    rows = labelled_rows()
    if config.teacher:
        numbered = [row | {"number": number} for number, row in enumerate(rows)]
        answers = {row["number"]: row["topic"] for row in Teacher(config).map(topic, numbered)}
        rows = [row | {"topic": answers.get(number, "none")} for number, row in enumerate(rows)]
    else:
        rows = [row | {"topic": topic_of_row(row)} for row in rows]
    outcome.tables = [score_table(rows), confusion_table(rows, "tune"), confusion_table(rows, "test")]
    outcome.metrics = {
        "Topics by": config.teacher_model if config.teacher else "rules",
        "Labels by": "a language model" + ("" if config.teacher else ", which also wrote the rules: an upper bound"),
        "Rows": len(rows),
    }
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
