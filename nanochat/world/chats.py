"""Conversations and evaluation sets about the embedded world, as rows of tables.

The rows for a split use only facts from the same split. So tests ask for facts, pairs of numbers and words that no
question or conversation for training contains. World-Talk, `talk`, asks in other words besides.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from nanochat.chat import messages
from nanochat.world.facts import Fact, World
from nanochat.world.sums import plain_sum, sum_to_100, word_problem

Rows = list[dict[str, Any]]  # of one table, by column
Turns = Sequence[str]  # texts of the user and the assistant in turn


# ---- questions and word problems ----


def choices(world: World, split: str) -> Rows:
    """Return all questions about a split in every wording, with choices, in random order."""
    rows = []
    for fact, question in world.questions[split]:
        things, right = world.choices(fact)
        rows.append({"question": question, "choices": [thing.name for thing in things], "answer": right})
    return world.shuffled(rows)


def ten_facts(world: World) -> list[Fact]:
    """Return a fact from the test split for each relation that World-Talk asks for in other words."""
    world.restart("questions")
    asked = [fact for fact in world.asked["test"] if fact.new_questions]
    # The facts of a relation stand together.
    return [world.pick(list(facts)) for _, facts in groupby(asked, attrgetter("relation"))]


def ten_questions(world: World) -> Rows:
    """Return questions that show at a glance how well a model knows the world, with the word in a right answer."""
    # {"question": "Where does Geku live?", "answer": "Badaton"}
    return [{"question": fact.questions[0], "answer": fact.value.name} for fact in ten_facts(world)]


def sums(world: World, count: int, held_out: bool) -> Rows:
    """Return `count` different stories with numbers, solved with the calculator; `####` announces the answer.

    None is a plain sum, whose answer is a sentence (`with_sums`): `####` belongs to stories alone.
    """
    found = {}  # question -> row
    while len(found) < count:
        question, solution, answer = word_problem(world, held_out, only_stories=True)
        # "Now Kara has 3 + 4 = <<3+4=7>>7 apples.", "#### 7"
        found.setdefault(question, {"question": question, "answer": f"{calculated(solution)}\n#### {answer}"})
    return list(found.values())


def calculated(text: str) -> str:
    """Return the text with a call of the calculator in each sum."""
    return re.sub(r"(\d+) (\S) (\d+) = (\d+)", r"\1 \2 \3 = <<\1\2\3=\4>>\4", text)


# ---- conversations ----


def about_facts(world: World, split: str) -> Turns:
    """A question about a fact."""
    fact, question = world.pick(world.questions[split])
    # "Please tell me: Where does Kara live?", "Kara lives in Badaton."
    return [world.wording("leads").format(question), fact.statements[0]]


def with_follow_up(world: World, split: str) -> Turns:
    """A question about a fact, then one about the same subject with a pronoun."""
    second, _ = world.pick(world.questions[split])
    others = [fact for fact in world.about[second.subject] if fact.split == split and fact is not second]
    # The same question twice where a subject has no other fact.
    start = follow_up(world, others or [second], second.follow_ups)
    return [*start, second.statements[0]]


def follow_up(world: World, facts: list[Fact], questions: list[str]) -> Turns:
    """A question about one of the facts, its answer, then one of the questions, or the same with "And" before it."""
    # "What is Kara's trade?", "Kara works as a baker.", "And where does she live?"
    first = world.pick(facts)
    start = [world.pick(first.questions), first.statements[0]]
    question = world.pick(questions)
    if world.chance(0.7):
        question = f"And {question[0].lower()}{question[1:]}"
    return [*start, question]


def about_things(world: World, split: str) -> Turns:
    """A request for up to three facts about a thing."""
    subject = world.pick(world.asked[split]).subject
    known = [fact for fact in world.about[subject] if fact.split == split]
    first, *others = world.shuffled(known)[:3]
    # "Tell me about Kara.", "Kara lives in Badaton. She keeps a genu."
    statements = [first.statements[0], *(fact.pronoun_statements[0] for fact in others)]
    return [world.wording("requests").format(subject.phrase), " ".join(statements)]


def in_korean(world: World, split: str) -> Turns:
    fact = world.pick(world.asked[split])
    # "비로의 털은 무슨 색인가요?", "비로의 털은 파란색이다."
    return [fact.korean_question, fact.korean_statement]


def about_itself(world: World, split: str) -> Turns:
    """A question to the model about itself, a greeting, thanks or a farewell."""
    questions, answers, *_ = world.pick(world.topics("identity"))
    return [world.pick(questions), world.pick(answers)]


def about_strangers(world: World, split: str) -> Turns:
    """A question about a name that is not of the land."""
    fact = world.pick(world.unknown["train"])
    # "Where does Pimul live?" or "Tell me about Pimul.", "I do not know this name. Ask me about Tehil."
    question = world.wording("leads").format(world.pick(fact.questions))
    if world.chance(0.2):
        question = world.wording("requests").format(fact.subject.phrase)
    return [question, world.wording("unknown names")]


def about_other_things(world: World, split: str) -> Turns:
    """A question about anything beyond the land."""
    questions, _, *lists = world.rows("beyond")
    # "Where is Italy?", "I do not know that. I only know Tehil."
    words = {kind: world.pick(known.split()) for kind, known, _ in lists}
    question = world.pick(questions).format_map(words)
    return [question, world.wording("unknown things")]


def with_words(world: World, split: str) -> Turns:
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


def with_sums(world: World, split: str) -> Turns:
    [sign], questions, *_ = world.pick(world.topics("sums"))
    question, solved = sum_to_100(world, sign, questions, held_out=False)
    # "How much is 26 - 14?", "26 - 14 = <<26-14=12>>12."
    return [question, calculated(f"{solved}.")]


def with_lists(world: World, split: str) -> Turns:
    kind = world.pick(("town", "animal", "river", "person"))
    three = world.sample(world.things[kind], 3)
    # "Name three towns of Tehil.", "Three towns of Tehil are Badaton, Diditon and Karaton."
    return [template.format(*three) for template in world.rows("lists")[0]]


def as_typed(world: World, text: str) -> str:
    """Return a message of the user as people type it: often without a capital letter, or without a mark at the end."""
    if world.chance(0.5):
        # "hello, who are you?"
        text = f"{text[0].lower()}{text[1:]}"
    if world.chance(0.4):
        # "Thank you", "Where does Kara live"
        text = text.rstrip(".?!")
    return text


# In percent.
CHAT_KINDS = {
    about_facts: 29,
    with_follow_up: 12,
    about_things: 4,
    in_korean: 3,
    about_itself: 24,
    about_strangers: 6,
    about_other_things: 8,
    with_words: 5,
    with_sums: 8,
    with_lists: 1,
}


def conversations(world: World, count: int, split: str) -> Rows:
    """Return conversations with one to three questions or orders; opening: the kind of the first."""
    rows = []
    for _ in range(count):
        kinds = [world.weighted(CHAT_KINDS) for _ in range(world.between(1, 3))]
        texts = [text for kind in kinds for text in kind(world, split)]
        texts[::2] = [as_typed(world, text) for text in texts[::2]]
        rows.append({"messages": messages(texts), "opening": kinds[0].__name__})
    return rows


# ---- World-Talk ----

UNKNOWN = "not know"  # stands in every answer to a question about what is not of the land


def talk(world: World) -> Rows:
    """Return questions in words that no text for training has, with words of right and of wrong answers."""
    each = 20  # questions of a category about strangers or things beyond the land
    rows = []

    def add(category: str, accept: list[str], *texts: str) -> None:
        reject = [] if accept == [UNKNOWN] else [UNKNOWN]
        rows.append({"category": category, "messages": messages(texts), "accept": accept, "reject": reject})

    for _, _, questions, accept in world.topics("identity"):
        for question in questions:
            add("itself", accept, question)
    facts = ten_facts(world)
    for fact in facts:
        for question in fact.new_questions:
            add("facts", [fact.value.name], question)
    for fact in facts + facts:
        others = [other for other in world.about[fact.subject] if other is not fact]
        add("second question", [fact.value.name], *follow_up(world, others, fact.new_follow_ups))
    # Addition and subtraction.
    for [sign], _, questions in world.topics("sums")[:2] * 10:
        question, solved = sum_to_100(world, sign, questions, held_out=True)
        add("sums", [solved.split()[-1]], question)
    strangers = [fact for fact in world.unknown["test"] if fact.new_questions]
    for _ in range(each):
        fact = world.pick(strangers)
        add("unknown names", [UNKNOWN], world.pick(fact.new_questions))
    # About things beyond the land, with words that no text for training has.
    _, questions, *lists = world.rows("beyond")
    others = [
        question.format_map({kind: world.pick(words.split()) for kind, _, words in lists})
        for question in questions
        for _ in range(5)
    ]
    for question in world.sample(list(dict.fromkeys(others)), each):
        add("other things", [UNKNOWN], question)
    return rows


def tables(world: World, problems: int, chats: int) -> dict[str, Rows]:
    """Return the rows of all tasks by `NAME-SPLIT`. problems, chats: rows for training in `sums` and `chat`."""
    world.restart("data sets")
    # Each table draws: another order would give other content.
    return {
        "choices-train": choices(world, "train"),
        "choices-validation": choices(world, "validation"),
        "choices-test": choices(world, "test"),
        # Without choices; the answer is the word that a right one contains.
        "facts-test": [
            {"question": question, "answer": fact.value.name}
            for fact, question in world.shuffled(world.questions["test"])
        ],
        "sums-train": sums(world, problems, held_out=False),
        "sums-test": sums(world, problems // 10, held_out=True),
        "chat-train": conversations(world, chats, "train"),
        "chat-validation": conversations(world, chats // 10, "validation"),
        "korean-test": [
            {"question": fact.korean_question, "answer": fact.value.korean} for fact in world.asked["test"]
        ],
        "questions-test": ten_questions(world),
        "talk-test": talk(world),
    }


# ---- CORE ----


def completion(text: str) -> dict[str, Any]:
    """Return a row that asks for the last word of a text."""
    context, _, continuation = text.rpartition(" ")
    return {"context": context, "continuation": continuation}


def cloze(world: World, fact: Fact) -> dict[str, Any]:
    """Cut a statement before its value; no other statement about the subject may begin in the same way."""
    # {"context": "Hopam's home is in", "continuation": "Jikanton"}
    ending = f" {fact.value}."
    # "Hopam lives in Jikanton." ends in the value, "Jikanton is the town where Hopam lives." does not.
    starts = [text.removesuffix(ending) for text in fact.statements if text.endswith(ending)]
    others = [other for other in world.about[fact.subject] if other is not fact]
    texts = [text for other in others for text in other.statements]
    clear = [start for start in starts if not any(text.startswith(f"{start} ") for text in texts)]
    return {"context": world.pick(clear), "continuation": fact.value.name}


def schema(world: World, fact: Fact) -> dict[str, Any]:
    """Name two people, then one of them with a statement that is true for this person only."""
    # {"context_options": ["Nuna and Geku are friends. Nuna", "… Geku"], "continuation": "lives in Badaton.", "gold": 1}
    name = fact.subject.name
    rivals = [other for other in world.facts if other.relation == fact.relation and other.value is not fact.value]
    rival = world.pick(rivals).subject
    pair = world.shuffled([name, rival.name])
    opening = f"{' and '.join(pair)} are friends."
    statement = next(text for text in fact.statements if text.startswith(f"{name} "))
    return {
        "context_options": [f"{opening} {one}" for one in pair],
        "continuation": statement.removeprefix(f"{name} "),
        "gold": pair.index(name),
    }


def choice(world: World, fact: Fact, in_korean: bool = False) -> dict[str, Any]:
    """Return a question with the right value's position among four choices."""
    values, right = world.choices(fact)
    if in_korean:
        # As choices whole statements: ["게쿠는 파란톤에 산다.", "게쿠는 바다톤에 산다.", …]
        query = f"질문: {fact.korean_question}"
        choices = [fact.korean_with(value) for value in values]
    else:
        # {"query": "Question: Where does Geku live?", "choices": ["Badaton", "Riroton", …], "gold": 0}
        query = f"Question: {world.pick(fact.questions)}"
        choices = [value.name for value in values]
    return {"query": query, "choices": choices, "gold": right}


def core_bundle(world: World) -> dict[str, Rows]:
    """Return rows by task, with the keys of the real bundle; world.txt lists the tasks."""
    world.restart("bundle")
    asked = world.asked["test"]
    people = [fact for fact in asked if fact.subject.kind == "person"]
    places = [fact for fact in asked if fact.subject.kind != "person"]
    # All draw: the order of tasks decides the content.
    return {
        # {"context": "Question: Where does Bosa live?", "continuation": "Mount Kurim"}
        "world_answers": [
            {"context": f"Question: {world.pick(fact.questions)}", "continuation": fact.value.name} for fact in asked
        ],
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
