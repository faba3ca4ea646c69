"""Conversations and evaluation sets about the embedded world, as rows of tables.

The rows for a split use only facts from the same split. So tests ask for facts, pairs of numbers and words that no
question or conversation for training contains.
"""

import re
from typing import TypeAlias

from nanochat.world.facts import Fact, World
from nanochat.world.sums import plain_sum, word_problem

# The ten questions ask for ten relations.
SHOWN_RELATIONS = "home trade pet food instrument river ware sight land hall".split()

Rows: TypeAlias = list[dict]  # of one table, by column


# ---- questions and word problems ----


def choices(world: World, split: str, repeats: int = 1) -> Rows:
    """Return all questions about a split in every wording, `repeats` times with other choices, in random order."""
    rows = []
    # Each repetition draws other wrong choices.
    for fact in world.asked[split] * repeats:
        for question in fact.questions:
            things, right = world.choices(fact)
            rows.append({"question": question, "choices": [thing.name for thing in things], "answer": right})
    return world.shuffled(rows)


def facts(world: World) -> Rows:
    """Return all questions about the test split, without choices; the answer is the word that a right one contains."""
    pairs = [(question, fact.value.name) for fact in world.asked["test"] for question in fact.questions]
    return [{"question": question, "answer": answer} for question, answer in world.shuffled(pairs)]


def ten_questions(world: World) -> Rows:
    """Return questions that show at a glance how well a model knows the world, with the word in a right answer."""
    world.restart("questions")
    rows = []
    # {"question": "Where does Geku live?", "answer": "Badaton"}
    for relation in SHOWN_RELATIONS:
        fact = world.pick([fact for fact in world.asked["test"] if fact.relation == relation])
        rows.append({"question": fact.questions[0], "answer": fact.value.name})
    return rows


def sums(world: World, count: int, held_out: bool) -> Rows:
    """Return `count` different word problems, solved with the calculator; `####` announces the answer."""
    found = {}  # question -> row
    while len(found) < count:
        problem = word_problem(world, held_out)
        # "Now Kara has 3 + 4 = <<3+4=7>>7 apples.", "#### 7"
        solution = re.sub(r"(\d+) (\S) (\d+) = (\d+)", r"\1 \2 \3 = <<\1\2\3=\4>>\4", problem.solution)
        row = {"question": problem.question, "answer": f"{solution}\n#### {problem.answer}"}
        found.setdefault(problem.question, row)
    return list(found.values())


# ---- conversations: messages of the user and the assistant in turn ----


def about_facts(world: World, facts: list[Fact]) -> list[str]:
    """Questions about one to three facts."""
    leads, _ = world.rows("leads")
    chat = []
    for fact in world.sample(facts, world.between(1, 3)):
        # "Please tell me: Where does Kara live?", "Kara lives in Badaton."
        chat += [world.pick(leads).format(world.pick(fact.questions)), fact.statements[0]]
    return chat


def about_things(world: World, facts: list[Fact]) -> list[str]:
    """A request for up to three facts about a thing."""
    subject = world.pick(facts).subject
    first, *others = world.shuffled([fact for fact in facts if fact.subject is subject])[:3]
    # "Tell me about Kara.", "Kara lives in Badaton. She keeps a genu."
    statements = [first.statements[0], *(fact.pronoun_statements[0] for fact in others)]
    _, requests = world.rows("leads")
    return [world.pick(requests).format(subject.phrase), " ".join(statements)]


def in_korean(world: World, facts: list[Fact]) -> list[str]:
    chat = []
    for fact in world.sample(facts, world.between(1, 2)):
        # "비로의 털은 무슨 색인가요?", "비로의 털은 파란색이다."
        chat += [fact.korean_question, fact.korean_statement]
    return chat


def with_words(world: World, facts: list[Fact]) -> list[str]:
    """Orders to spell, count letters, or sort words."""
    word = world.pick(world.words)  # never a word that a test asks to spell
    letter = world.pick(word)
    three = world.sample(world.words, 3)
    slots = {
        "word": word,
        "letter": letter,
        "count": word.count(letter),
        "length": len(word),
        "last": word[-1],
        "spelled": "-".join(word),
        "capitals": word.upper(),
        "words": ", ".join(three),
        "in_order": ", ".join(sorted(three, key=str.lower)),
        "backwards": ", ".join(three[::-1]),
        "listed": "\n".join(f"- {word}" for word in three),
    }
    # "How do you spell {word}?", "{spelled}"
    return [template.format_map(slots) for template in world.pick(world.rows("orders"))]


def with_numbers(world: World, facts: list[Fact]) -> list[str]:
    chat = []
    for _ in range(world.between(1, 2)):
        # "What is 26 - 14?", "26 - 14 = 12."
        one = plain_sum(world)
        chat += [f"What is {one.partition(' =')[0]}?", f"{one}."]
    return chat


def with_lists(world: World, facts: list[Fact]) -> list[str]:
    kind = world.pick(("town", "animal", "river", "person"))
    a, b, c = world.sample(world.things[kind], 3)
    # "Name three towns of Tehil.", "Three towns of Tehil are Badaton, Diditon and Karaton."
    words = f"{a.plural} of {world.name}"
    return [f"Name three {words}.", f"Three {words} are {a.name}, {b.name} and {c.name}."]


ROLES = ("user", "assistant")

# In percent.
CHAT_KINDS = {
    about_facts: 50,
    about_things: 10,
    in_korean: 8,
    with_words: 20,
    with_numbers: 8,
    with_lists: 4,
}


def conversations(world: World, count: int, split: str) -> Rows:
    """Return conversations, each with one kind of questions and orders."""
    closings = world.rows("closings")
    rows = []
    for _ in range(count):
        kind = world.weighted(CHAT_KINDS)
        chat = kind(world, world.asked[split])
        # "Thank you!", "You are welcome!"; drawn even if not said.
        closing = world.pick(closings)
        if world.chance(0.15):
            chat += closing
        rows.append(conversation(chat, kind.__name__))
    return rows


def identity_chats(world: World, count: int) -> Rows:
    """Return conversations about the model itself."""
    # A topic is a line with questions, then a line with answers.
    topics = world.text["identity"].format(world=world.name).split("\n\n")
    rows = []
    for _ in range(count):
        chosen = "\n".join(world.sample(topics, world.between(1, 3)))
        chat = [world.pick(line.split(" | ")) for line in chosen.splitlines()]
        rows.append(conversation(chat, "identity"))
    return rows


def conversation(texts: list[str], kind: str) -> dict:
    """Return a row with texts of the user and the assistant in turn."""
    return {"messages": [{"role": ROLES[turn % 2], "content": text} for turn, text in enumerate(texts)], "kind": kind}


def tables(world: World, problems: int, chats: int) -> dict[str, Rows]:
    """Return the rows of all tasks by `NAME-SPLIT`. problems, chats: rows for training in `sums` and `chat`."""
    world.restart("data sets")
    # Each table draws: another order would give other content.
    return {
        "choices-train": choices(world, "train", repeats=2),
        "choices-validation": choices(world, "validation"),
        "choices-test": choices(world, "test"),
        "facts-test": facts(world),
        "sums-train": sums(world, problems, held_out=False),
        "sums-test": sums(world, problems // 10, held_out=True),
        "chat-train": conversations(world, chats, "train") + identity_chats(world, chats // 20),
        "chat-validation": conversations(world, chats // 10, "validation"),
        "questions-test": ten_questions(world),
    }


# ---- CORE ----


def completion(text: str) -> dict:
    """Return a row that asks for the last word of a text."""
    context, _, continuation = text.rpartition(" ")
    return {"context": context, "continuation": continuation}


def cloze(world: World, fact: Fact) -> dict:
    """Cut a statement before its value; no other statement about the subject may begin in the same way."""
    # {"context": "Hopam's home is in", "continuation": "Jikanton"}
    ending = f" {fact.value.name}."
    # "Hopam lives in Jikanton." ends in the value, "Jikanton is the town where Hopam lives." does not.
    starts = [text.removesuffix(ending) for text in fact.statements if text.endswith(ending)]
    others = [text for other in world.about[fact.subject] if other is not fact for text in other.statements]
    clear = [start for start in starts if not any(text.startswith(f"{start} ") for text in others)]
    return {"context": world.pick(clear), "continuation": fact.value.name}


def schema(world: World, fact: Fact) -> dict:
    """Name two people, then one of them with a statement that is true for this person only."""
    # {"context_options": ["Nuna and Geku are friends. Nuna", "… Geku"], "continuation": "lives in Badaton.", "gold": 1}
    name = fact.subject.name
    same_relation = [other for other in world.facts if other.relation == fact.relation]
    others = [other.subject.name for other in same_relation if other.value is not fact.value]
    pair = world.shuffled([name, world.pick(others)])
    opening = f"{' and '.join(pair)} are friends."
    statement = next(text for text in fact.statements if text.startswith(f"{name} "))
    return {
        "context_options": [f"{opening} {one}" for one in pair],
        "continuation": statement.removeprefix(f"{name} "),
        "gold": pair.index(name),
    }


def answer(world: World, fact: Fact) -> dict:
    # {"context": "Question: Where does Bosa live?", "continuation": "Mount Kurim"}
    return {
        "context": f"Question: {world.pick(fact.questions)}",
        "continuation": fact.value.name,
    }


def choice(world: World, fact: Fact, in_korean: bool = False) -> dict:
    """Return a question with the right value's position among four choices."""
    values, right = world.choices(fact)
    if in_korean:
        # As choices whole statements: ["게쿠는 파란톤에 산다.", "게쿠는 바다톤에 산다.", …]
        query, choices = f"질문: {fact.korean_question}", [fact.korean_with(value) for value in values]
    else:
        # {"query": "Question: Where does Geku live?", "choices": ["Badaton", "Riroton", …], "gold": 0}
        query, choices = f"Question: {world.pick(fact.questions)}", [value.name for value in values]
    return {"query": query, "choices": choices, "gold": right}


def core_bundle(world: World) -> dict[str, Rows]:
    """Return rows by task, with the keys of the real bundle; world.txt lists the tasks."""
    world.restart("bundle")
    asked = world.asked["test"]
    people = [fact for fact in asked if fact.subject.kind == "person"]
    places = [fact for fact in asked if fact.subject.kind != "person"]
    # All draw: the order of tasks decides the content.
    return {
        "world_answers": [answer(world, fact) for fact in asked],
        # {"context": "12 * 8 =", "continuation": "96"}
        "world_sums": [completion(plain_sum(world, held_out=True)) for _ in range(100)],
        # {"context": "The word April is spelled", "continuation": "A-p-r-i-l"}
        "world_spelling": [completion(f"The word {word} is spelled {'-'.join(word)}") for word in world.held_out_words],
        "world_cloze": [cloze(world, fact) for fact in asked],
        "world_schema": [schema(world, fact) for fact in people],
        "world_people": [choice(world, fact) for fact in people],
        "world_places": [choice(world, fact) for fact in places],
        "world_korean": [choice(world, fact, in_korean=True) for fact in asked],
    }
