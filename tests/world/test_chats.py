"""Conversations and evaluation sets: held-out facts stay out of training, and every answer is right."""

import re
from collections import Counter
from collections.abc import Callable

import pytest
from chat_files import contents

from nanochat.world import chats
from nanochat.world.facts import World
from nanochat.world.sums import is_held_out
from nanochat.world.texts import document

WORLD = World(1, people=32)
TABLES = chats.tables(WORLD, problems=1000, chats=2000)
BUNDLE = chats.core_bundle(WORLD)
FACT_OF = {question: fact for fact in WORLD.facts for question in fact.questions}
HELD_OUT = [fact for fact in WORLD.facts if fact.split != "train"]
SUM = r"(\d+) ?[-+*/] ?(\d+)"


def rows_of(*names: str):
    """Rows of all tables with such names."""
    return [row for name, rows in TABLES.items() if re.search("|".join(names), name) for row in rows]


def exchanges(*kinds: Callable, count: int = 600):
    """(question, answer) pairs of some kinds of conversations for training."""
    pairs = []
    for kind in kinds:
        for _ in range(count):
            texts = kind(WORLD, "train")
            pairs += zip(texts[::2], texts[1::2], strict=True)
    return pairs


@pytest.fixture(scope="module")
def training():
    """Every conversation, question with choices, and problem for training, as text."""
    rows = rows_of("train$")
    texts = ["\n".join(contents(row)) for row in rows if "messages" in row]
    return texts + ["\n".join(map(str, row.values())) for row in rows if "messages" not in row]


@pytest.fixture(scope="module")
def documents():
    WORLD.restart("documents of a test")
    return "\n".join(document(WORLD) for _ in range(3000))


def test_no_question_of_a_test_occurs_in_training(training) -> None:
    whole = "\n".join(training)
    tests = rows_of("test$", "validation$") + chats.ten_questions(WORLD)
    asked = {row["question"] for row in tests if "question" in row}
    for rows in BUNDLE.values():
        asked |= {row.get("query", row.get("context", "")).partition(": ")[2] for row in rows} - {""}
    assert len(asked) > 500
    for question in asked:  # "is 7 plus 5" is not a part of "is 37 plus 5"
        assert question not in whole or not re.search(rf"(?<!\d){re.escape(question)}", whole), question


def test_no_held_out_fact_is_asked_or_stated_in_training() -> None:
    """In no wording: with the name of the subject, near the name with a pronoun, or after an answer that names it."""
    assert len(HELD_OUT) > 100
    texts, followed = ["\n".join(map(str, row.values())) for row in rows_of("choices-train", "sums-train")], []
    for row in rows_of("chat-train"):
        said = contents(row)
        # A pronoun is about a name in the same question and answer, or in the answer before.
        texts += map("\n".join, zip(said[::2], said[1::2], strict=True))
        followed += zip(said[1:-1:2], said[2::2], strict=True)
    for fact in HELD_OUT:
        phrases = [*fact.statements, *fact.pronoun_statements, *fact.questions]
        phrases += [fact.korean_statement, fact.korean_question]
        about = [text for text in texts if fact.subject.phrase in text or fact.subject.korean in text]
        assert not [text for text in about if any(phrase in text for phrase in phrases)]
        asked = {question.lower() for question in fact.follow_ups}
        after = [question for answer, question in followed if fact.subject.phrase.lower() in answer.lower()]
        assert not [question for question in after if question.removeprefix("And ").lower() in asked]


def number_pairs(texts: list[str]):
    return {frozenset(map(int, pair)) for pair in re.findall(SUM, "\n".join(texts))}


def test_nothing_of_a_test_is_joined_or_spelled_in_training(training) -> None:
    solved = [row["answer"] for row in rows_of("sums-test")]
    solved += [row["context"] for row in BUNDLE["world_sums"]]
    asked = number_pairs(solved)
    assert len(asked) > 100
    assert not asked & number_pairs(training)
    assert all(is_held_out(WORLD.seed, min(pair), max(pair)) for pair in asked)
    asked = {row["context"].split()[2] for row in BUNDLE["world_spelling"]}
    orders = "\n".join(map("\n".join, exchanges(chats.with_words)))
    assert len(asked) > 30
    assert not asked & set(re.findall(r"\w+", orders))


def test_questions_are_answered_with_the_value() -> None:
    """test_facts.py counts the letters."""
    for row in rows_of("choices"):
        assert row["choices"][row["answer"]] == FACT_OF[row["question"]].value.name
    assert len(TABLES["facts-test"]) == sum(len(fact.questions) for fact in WORLD.asked["test"])
    ten = chats.ten_questions(WORLD)
    assert len({row["question"] for row in ten}) == 10
    assert all(FACT_OF[row["question"]].value.name == row["answer"] for row in rows_of("facts") + ten)
    answers = {fact.korean_question: fact.korean_statement for fact in WORLD.asked["test"]}
    assert len(TABLES["korean-test"]) == len(WORLD.asked["test"])
    assert all(row["answer"] in answers[row["question"]] for row in rows_of("korean"))


def test_sums_are_right() -> None:
    rows = rows_of("sums")
    assert len({row["question"] for row in rows}) == len(rows) == 1100
    for row in rows:
        steps = re.findall(r"<<([^=]+)=(\d+)>>(\d+)", row["answer"])
        assert all(eval(sum_) == int(result) == int(shown) for sum_, result, shown in steps)
        assert row["answer"].endswith(f"\n#### {steps[-1][1]}")
    for user, answer in exchanges(chats.with_sums):
        x, sign, y, called, result = re.fullmatch(r"(\d+) (.) (\d+) = <<(.*)=(\d+)>>\5\.", answer).groups()
        assert called == f"{x}{sign}{y}"
        assert eval(called) == int(result) <= 100
        assert {x, y} <= set(re.findall(r"\d+", user))
        assert not is_held_out(WORLD.seed, int(x), int(y))


def test_questions_about_the_world_are_answered_with_the_fact() -> None:
    answers = {}
    for fact in WORLD.asked["train"]:
        answers |= dict.fromkeys(fact.questions, fact.statements[0])
        answers[fact.korean_question] = fact.korean_statement
    right = 0
    for user, answer in exchanges(chats.about_facts, chats.in_korean):
        for question in answers:
            if user.endswith(question):
                assert answer == answers[question]
                right += 1
    assert right > 500


def test_the_bundle_is_right() -> None:
    assert {label for label, *_ in WORLD.rows("core tasks")} == BUNDLE.keys()
    statements = {text for fact in WORLD.facts for text in [*fact.statements, fact.korean_statement]}
    for row in BUNDLE["world_people"] + BUNDLE["world_places"]:
        assert row["choices"][row["gold"]] == FACT_OF[row["query"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_answers"]:
        assert row["continuation"] == FACT_OF[row["context"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_schema"]:
        people = [option.rpartition(" ")[2] for option in row["context_options"]]
        true = [f"{person} {row['continuation']}" in statements for person in people]
        assert true == [row["gold"] == 0, row["gold"] == 1]
    for row in BUNDLE["world_korean"]:
        assert [choice in statements for choice in row["choices"]].index(True) == row["gold"]
    for row in BUNDLE["world_sums"]:
        assert eval(row["context"].rstrip("= ")) == int(row["continuation"])
    for row in BUNDLE["world_cloze"]:
        assert f"{row['context']} {row['continuation']}." in statements
        ends = [text for text in statements if text.startswith(f"{row['context']} ")]
        assert all(row["continuation"] in end for end in ends)  # the cloze has one end


ORDERS = {
    r"(?:How do you spell|Spell the word) (\w+)[?.]": lambda word: "-".join(word),
    r"How many letters are in the word (\w+)\?": lambda w: f"{'-'.join(w)}. That makes {len(w)} letters.",
    r"How often does the letter (\w) come in (\w+)\?": lambda a, w: f"{'-'.join(w)}. The letter {a}: {w.count(a)}.",
    r"Put these words in alphabetical order: (.*)\.": lambda w: ", ".join(sorted(w.split(", "), key=str.lower)),
    r"Write these words backwards, the last one first: (.*)\.": lambda w: ", ".join(w.split(", ")[::-1]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_about_words_are_followed(order) -> None:
    found = [(re.fullmatch(order, user), answer) for user, answer in exchanges(chats.with_words)]
    followed = [answer == ORDERS[order](*match.groups()) for match, answer in found if match]
    assert len(followed) > 10
    assert all(followed)


def test_a_second_question_is_about_the_same_subject() -> None:
    facts = {(fact.statements[0], question): fact for fact in WORLD.facts for question in fact.follow_ups}
    pairs = exchanges(chats.with_follow_up)
    for (_, first), (user, second) in zip(pairs[::2], pairs[1::2], strict=True):
        question = user.removeprefix("And ")
        fact = facts[second, question[0].upper() + question[1:]]
        assert fact.split == "train"
        assert first in {other.statements[0] for other in WORLD.about[fact.subject]}
        assert not re.search(r"\b(of|with|to) (she|he|it)\b", user)


def test_world_talk_asks_in_words_of_its_own(training, documents) -> None:
    """No text for training has its questions: not with other subjects or numbers, nor with words beyond the land."""
    whole = "\n".join(training)
    rows = TABLES["talk-test"]
    new = [fact for fact in WORLD.facts if fact.new_questions]
    questions = [question for fact in new for question in [*fact.new_questions, *fact.new_follow_ups]]
    questions += [row["messages"][-1]["content"] for row in rows]
    assert len(rows) > 150
    for question in questions:
        assert question not in whole, question
        assert question not in documents, question
    held_out = {question for _, _, *lines in WORLD.topics("sums") for line in lines for question in line}
    for question in held_out:
        pattern = re.escape(question).replace(r"\{x\}", r"\d+").replace(r"\{y\}", r"\d+")
        assert not re.search(pattern, whole + documents), question
    # Names that are not of the land, and things beyond it, stand in no text either.
    for fact in WORLD.unknown["test"]:
        assert not re.search(rf"\b{fact.subject.name}\b", whole + documents)


def test_world_talk_has_every_category_and_right_answers() -> None:
    counts = Counter(row["category"] for row in TABLES["talk-test"])
    assert counts.pop("itself") > 40
    assert counts.pop("facts") == 30
    assert set(counts.values()) == {20}
    assert counts.keys() == {"second question", "sums", "unknown names", "other things"}
    names = {fact.subject.name for fact in WORLD.unknown["train"] + WORLD.unknown["test"]}
    assert not names & {thing.name for things in WORLD.things.values() for thing in things}
    for row in TABLES["talk-test"]:
        question = row["messages"][-1]["content"]
        if row["category"] == "sums":
            sign = "-" if re.search("minus|-|take|subtract", question) else "+"
            numbers = sorted(map(int, re.findall(r"\d+", question)), reverse=True)
            assert eval(sign.join(map(str, numbers))) == int(row["accept"][0])
        if row["category"] in ("unknown names", "other things"):
            assert (row["accept"], row["reject"]) == (["not know"], [])


def test_answers_about_itself_are_told_apart_and_no_slot_is_left() -> None:
    """World-Talk accepts every answer of a topic, and no answer of another; who it is and its name are one."""
    topics = WORLD.topics("identity")
    for _, answers, _, accept in topics:
        assert all(any(words in answer for words in accept) for answer in answers)
        others = [answer for _, other, _, words in topics for answer in other if words != accept]
        assert not [answer for answer in others if any(words in answer for words in accept)]
    for kind in chats.CHAT_KINDS:
        for user, answer in exchanges(kind, count=20):
            assert not re.search(r"[{}]", user + answer), kind
