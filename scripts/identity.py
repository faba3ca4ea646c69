"""Write conversations about who the model is, from a file of facts.

python -m scripts.identity --facts=me.toml --out=identity.jsonl
python -m scripts.chat_sft --tag=d8 --mixture=json:identity.jsonl:3,smoltalk@10000
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.curate.teacher import Teacher, TeacherSettings, user
from nanochat.log import Record, print0
from nanochat.outcome import ROOT
from nanochat.paths import write_jsonl
from nanochat.world.facts import Dice

TEMPLATES = ROOT / "nanochat/curate/identity.toml"
KNOWN = "name maker purpose licence languages cannot".split()  # keys with templates of their own
NUMBERING = re.compile(r"^[-*\s]*(\d+[.)]\s*)?", re.MULTILINE)  # before a line of a list
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
    templates = read_toml(TEMPLATES)
    korean = {f"korean_{key}": value for key, value in facts.pop("korean", {}).items()}
    words = {key: ", ".join(value) if isinstance(value, list) else value for key, value in (facts | korean).items()}
    # A favourite_colour = "blue" fills {key} and {value}.
    own = [key for key in facts if key not in KNOWN]
    fillings = [words] + [{"key": key.replace("_", " "), "value": words[key]} for key in own]
    topics = []
    for topic in templates["topic"]:
        slots = set(re.findall(r"\{(\w+)\}", topic["questions"] + topic["answers"]))
        leads = templates["leads"][topic["leads"]]
        for filling in fillings:
            if slots <= filling.keys():
                texts = {part: topic[part].format_map(filling).split("\n") for part in ("questions", "answers")}
                topics.append({"share": topic["share"], "leads": leads, **texts})
    return topics


def add_wordings(topics: list[Record], config: Config) -> None:
    """Add a teacher's wordings of the questions."""
    teacher = Teacher(config)

    def ask(topic: Record) -> list[str]:
        examples = "\n".join(topic["questions"][:12])
        lines = teacher.ask(user(teacher.prompt("wordings", examples=examples, count=str(config.wordings))))
        return NUMBERING.sub("", lines).split("\n")

    for topic, lines in teacher.map(ask, topics):
        topic["questions"].extend(line.strip() for line in lines if line.strip())


def conversations(topics: list[Record], config: Config) -> list[Record]:
    """Return conversations with one or two questions."""
    dice = Dice("identity", config.seed)
    shared = [topic for topic in topics for _ in range(topic["share"])]
    rows = []
    for _ in range(config.count):
        messages = []
        for _ in range(1 + dice.chance(TWO_QUESTIONS)):
            topic = dice.pick(shared)
            question = dice.pick(topic["leads"]).replace("{}", dice.pick(topic["questions"]))
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": dice.pick(topic["answers"])})
        rows.append({"messages": messages})
    return rows


def main(config: Config) -> None:
    facts = read_toml(Path(config.facts).expanduser())
    if "name" not in facts:
        raise ValueError(f'{config.facts} has no name: add a line like name = "Mina"')
    topics = topics_of(facts)
    if config.teacher:
        add_wordings(topics, config)
    write_jsonl(Path(config.out).expanduser(), conversations(topics, config))
    print0(f"identity: {config.count:,} conversations about {len(topics)} topics: {config.out}")


if __name__ == "__main__":
    run(main, Config)
