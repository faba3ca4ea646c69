"""Write conversations about who the model is, from a file of facts.

python -m scripts.identity --facts=me.toml --out=identity.jsonl
python -m scripts.chat_sft --tag=d8 --mixture=json:identity.jsonl:3,smoltalk@10000
"""

import re
import sys
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.curate.teacher import Teacher, TeacherSettings
from nanochat.log import Record, print0
from nanochat.outcome import ROOT
from nanochat.paths import write_jsonl
from nanochat.world.facts import Dice

TEMPLATES = ROOT / "nanochat/curate/identity.toml"
KNOWN = "name maker purpose licence languages cannot korean".split()  # keys with templates of their own
SLOT = re.compile(r"\{(\w+)\}")
NUMBERING = re.compile(r"^[-*\s]*(\d+[.)]\s*)?")  # before a line of a list
TWO_QUESTIONS = 0.3  # share of conversations


@dataclass(frozen=True)
class Config(TeacherSettings):
    """Write conversations about the model, from facts and templates; a teacher adds wordings."""

    facts: str = option("", "file with name, maker, purpose and other facts, TOML", group="rows")
    out: str = option("identity.jsonl", "file to write, JSONL", group="rows")
    count: Count = option(1000, "conversations", group="rows", least=1)
    wordings: Count = option(20, "wordings of each question to ask a teacher for", group="rows", least=1)
    seed: Count = option(1, "seed of the conversations", group="rows", least=0)


def read_toml(path: Path) -> Record:
    """Return the content of a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no TOML: {error}") from None


def topics_of(facts: Record) -> list[Record]:
    """Return the topics for which the facts have all words, filled in: share, leads, questions and answers."""
    topics = []
    templates = read_toml(TEMPLATES)
    for template in templates["topic"]:
        leads = templates["leads"]["korean" if template["korean"] else "english"].strip().split("\n")
        own = facts.get("korean", {}) if template["korean"] else facts
        words = {key: ", ".join(value) if isinstance(value, list) else str(value) for key, value in own.items()}
        # A favourite_colour = "blue" fills {key} and {value}.
        free = [{"key": key.replace("_", " "), "value": words[key]} for key in words if key not in KNOWN]
        slots = set(SLOT.findall(template["questions"] + template["answers"]))
        for filling in [words, *free]:
            if slots <= filling.keys():
                topics.append({"share": template["share"], "leads": leads})
                for part in ("questions", "answers"):
                    topics[-1][part] = template[part].format_map(filling).strip().split("\n")
    return topics


def add_wordings(topics: list[Record], config: Config) -> None:
    """Add a teacher's wordings of the questions."""
    teacher = Teacher(config)

    def ask(topic: Record) -> list[str]:
        prompt = teacher.prompt("wordings", examples="\n".join(topic["questions"][:12]), count=str(config.wordings))
        lines = teacher.ask([{"role": "user", "content": prompt}]).split("\n")
        return [NUMBERING.sub("", line).strip() for line in lines if line.strip()]

    for topic, lines in teacher.map(ask, topics):
        topic["questions"].extend(lines)


def conversations(topics: list[Record], config: Config) -> list[Record]:
    """Return conversations of one or two questions; every wording comes about equally often."""
    dice = Dice("identity", config.seed)
    questions = [cycle(dice.shuffled(topic["questions"])) for topic in topics]
    shares = {number: topic["share"] for number, topic in enumerate(topics)}
    rows = []
    for _ in range(config.count):
        messages = []
        for _ in range(1 + dice.chance(TWO_QUESTIONS)):
            number = dice.weighted(shares)
            question = dice.pick(topics[number]["leads"]).replace("{}", next(questions[number]))
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": dice.pick(topics[number]["answers"])})
        rows.append({"messages": messages})
    return rows


def main(config: Config) -> None:
    facts = read_toml(Path(config.facts).expanduser())
    if "name" not in facts:
        raise ValueError(f'{config.facts} has no name: add a line like name = "Mina"')
    topics = topics_of(facts)
    if config.teacher:
        add_wordings(topics, config)
    rows = conversations(topics, config)
    write_jsonl(Path(config.out).expanduser(), rows)
    wordings = sum(len(topic["questions"]) for topic in topics)
    print0(f"identity: {len(rows):,} conversations about {len(topics)} topics, {wordings} questions: {config.out}")


if __name__ == "__main__":
    run(main, Config)
