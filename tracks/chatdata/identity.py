"""Write conversations about who the model is, from a file of facts.

python -m tracks.chatdata.identity --facts=me.toml --out=identity.jsonl
python -m scripts.chat_sft --tag=d8 --mixture=json:identity.jsonl:3,smoltalk@10000
"""

from contextlib import suppress
from pathlib import Path
from random import Random

from nanochat.chat import messages
from nanochat.config import Count, option, options, run_script
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.paths import read_toml, write_jsonl
from tracks.chatdata.teacher import Teacher, TeacherSettings

TEMPLATES = ROOT / "tracks/chatdata/identity.toml"
KNOWN = "name maker purpose licence languages cannot".split()  # keys with templates of their own, in Korean too
LIST_MARKS = "-*0123456789.) "  # before a line


@options("rows")
class Config(TeacherSettings):
    """Write conversations about the model, from facts and templates; a teacher adds wordings."""

    facts: str = option("me.toml", "file with name, maker, purpose and other facts, TOML")
    out: str = option("identity.jsonl", "file to write, JSONL")
    count: Count = option(1000, "conversations", least=1)
    seed: Count = option(1, "seed of the conversations")


def topics_of(facts: Record) -> list[Record]:
    """Return the topics for which the facts have all words, filled in: leads, questions and answers."""
    # A favourite_colour = "blue" fills {key} and {value}.
    own = [key for key in facts if key.removeprefix("korean_") not in KNOWN]
    fillings = [facts] + [{"key": key.replace("_", " "), "value": facts[key]} for key in own]
    templates = read_toml(TEMPLATES)
    topics = []
    for topic in templates["topic"]:
        leads = templates[topic["leads"]]
        questions = topic["questions"].split("\n")
        answers = topic["answers"].split("\n")
        for filling in fillings:
            with suppress(KeyError):  # a fact is not given
                asked = [line.format_map(filling) for line in questions]
                said = [line.format_map(filling) for line in answers]
                topics.append({"leads": leads, "questions": asked, "answers": said})
    return topics


def add_wordings(teacher: Teacher, topic: Record) -> Record:
    """Add a teacher's wordings to the questions of a topic."""
    text = teacher.ask("wordings", examples="\n".join(topic["questions"]))
    topic["questions"] += [line.lstrip(LIST_MARKS) for line in text.split("\n") if line.strip()]
    return topic


def main(config: Config) -> None:
    facts = read_toml(Path(config.facts))
    if "name" not in facts or not all(isinstance(value, str) for value in facts.values()):
        raise UserError(f'{config.facts} needs a name, and each fact as a text: add a line like name = "Mina"')
    topics = topics_of(facts)
    if config.teacher:
        Teacher(config).map(add_wordings, topics)
    random = Random(config.seed)
    questions = [(question, topic) for topic in topics for question in topic["questions"]]
    rows = []
    for _ in range(config.count):
        texts = []
        for question, topic in random.choices(questions, k=random.choice((1, 1, 2))):
            lead = random.choice(topic["leads"])
            texts += [lead.replace("{}", question), random.choice(topic["answers"])]
        rows.append({"messages": messages(texts)})
    write_jsonl(Path(config.out), rows)
    print0(f"identity: {config.count:,} conversations about {len(topics)} topics: {config.out}")


if __name__ == "__main__":
    run_script(main)
