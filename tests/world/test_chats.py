"""Conversations and evaluation sets: held-out facts stay out of training, and every answer is right."""

import contextlib
import io
import re
from collections import Counter

import pytest

from nanochat.world.chats import core_bundle, data_sets, identity_chats, ten_questions
from nanochat.world.facts import Dice, World
from nanochat.world.sums import is_held_out

WORLD = World(1, people=32)
SETS = data_sets(WORLD, Dice("sets"), problems=1000, chats=2000)
BUNDLE = core_bundle(WORLD, Dice("bundle"))
FACT_OF = {question: fact for fact in WORLD.facts for question in fact.questions}
HELD_OUT = [fact for fact in WORLD.facts if fact.split != "train"]
SUM = r"(\d+) ?[-+*/] ?(\d+)"


def exchanges(*kinds: str) -> list[tuple[str, str]]:
    """(question, answer) pairs of some kinds of conversations for training."""
    rows = [row for row in SETS["HuggingFaceTB/smol-smoltalk/data/train"] if row["source"] in kinds]
    texts = [[message["content"] for message in row["messages"]] for row in rows]
    return [pair for chat in texts for pair in zip(chat[::2], chat[1::2], strict=True)]


@pytest.fixture(scope="module")
def training() -> list[str]:
    """Every conversation, question with choices, and problem for training, as text."""
    rows = [row for name in SETS if name.endswith("train") for row in SETS[name]]
    chats = [row["messages"] for row in rows if "messages" in row] + identity_chats(WORLD, Dice("identity"), 300)
    texts = ["\n".join(message["content"] for message in chat) for chat in chats]
    return texts + ["\n".join(map(str, row.values())) for row in rows if "messages" not in row]


# ---- held out ----


def test_no_question_of_a_test_occurs_in_training(training):
    whole = "\n".join(training)
    tests = [row for name in SETS if name.endswith(("test", "validation")) for row in SETS[name]]
    tests += ten_questions(WORLD, Dice("ten"))
    asked = {row["question"] for row in tests if "question" in row}
    for row in (row for rows in BUNDLE.values() for row in rows):
        asked |= {row.get("query", row.get("context", "")).partition(": ")[2]} - {""}
    assert len(asked) > 500
    for question in asked:  # "is 7 plus 5" is no part of "is 37 plus 5"
        assert question not in whole or not re.search(rf"(?<!\d){re.escape(question)}", whole), question


def test_no_held_out_fact_is_asked_or_stated_in_training(training):
    """In no wording: with the name of the subject, or near the name with a pronoun."""
    assert len(HELD_OUT) > 100
    for fact in HELD_OUT:
        about = [text for text in training if fact.subject.phrase in text or fact.subject.korean in text]
        phrases = [*fact.statements, *fact.pronoun_statements, *fact.questions]
        phrases += [fact.korean_statement, fact.korean_question]
        assert not [text for text in about if any(phrase in text for phrase in phrases)]


def test_no_sentence_in_training_joins_a_held_out_subject_and_value():
    """In any wording; lists of words to spell or sort are no statements."""
    pairs = exchanges("about_facts", "about_things", "in_korean", "with_numbers", "with_lists")
    parts = [part for pair in pairs for part in re.split(r"(?<=[.?!])\s", " ".join(pair))]
    sentences = [set(re.findall(r"\w+", part)) for part in parts]
    for fact in HELD_OUT:
        both = set(re.findall(r"\w+", f"{fact.subject.phrase} {fact.value.name}"))
        assert not any(both <= words for words in sentences)


def test_no_pair_of_numbers_from_a_test_is_joined_in_training(training):
    tests = [SETS[name] for name in SETS if re.search("gsm8k|aqua", name) and not name.endswith("train")]
    solved = [row.get("answer") or row["rationale"] for rows in tests for row in rows]
    solved += [row["context"] for row in BUNDLE["world_sums"]]
    asked, seen = (
        {frozenset(map(int, pair)) for text in texts for pair in re.findall(SUM, text)} for texts in (solved, training)
    )
    assert len(asked) > 100
    assert len(seen) > 500
    assert not asked & seen
    assert all(is_held_out(WORLD.seed, min(pair), max(pair)) for pair in asked)


def test_words_spelled_in_a_test_are_never_named_in_training():
    asked = {row["context"].split()[2] for row in BUNDLE["world_spelling"]}
    orders = "\n".join(map("\n".join, exchanges("with_words")))
    assert len(asked) > 30
    assert not asked & set(re.findall(r"\w+", orders))


# ---- right answers ----


@pytest.mark.parametrize("name", ["allenai/ai2_arc/ARC-Easy", "allenai/ai2_arc/ARC-Challenge"])
def test_arc_is_right_and_its_letters_are_even(name):
    letters: Counter = Counter()
    for split in ("train", "validation", "test"):
        rows = SETS[f"{name}/{split}"]
        for row in rows:
            right = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
            fact = FACT_OF[row["question"]]
            assert (right, split) == (fact.value.name, fact.split)
            letters[row["answerKey"]] += 1
        assert len({row["id"] for row in rows}) == len(rows)
    assert all(letters[letter] > letters.total() / 6 for letter in "ABCD")


def test_mmlu_is_right_and_has_five_examples_for_each_subject():
    for split in ("auxiliary_train", "dev", "validation", "test"):
        for row in SETS[f"cais/mmlu/all/{split}"]:
            assert row["choices"][row["answer"]] == FACT_OF[row["question"]].value.name
            assert len(set(row["choices"])) == 4
    examples = Counter(row["subject"] for row in SETS["cais/mmlu/all/dev"])
    assert set(examples.values()) == {5}
    assert {row["subject"] for row in SETS["cais/mmlu/all/test"]} == set(examples)


def test_word_problems_end_in_their_result():
    for split, count in (("train", 1000), ("test", 100)):
        rows = SETS[f"openai/gsm8k/main/{split}"]
        assert len({row["question"] for row in rows}) == len(rows) == count
        for row in rows:
            steps = re.findall(r"<<([^=]+)=(\d+)>>(\d+)", row["answer"])
            assert all(eval(sum_) == int(result) == int(shown) for sum_, result, shown in steps)
            assert row["answer"].endswith(f"\n#### {steps[-1][1]}")


def test_the_right_option_is_the_result_of_the_rationale():
    letters: Counter = Counter()
    for row in (row for split in ("train", "validation", "test") for row in SETS[f"deepmind/aqua_rat/raw/{split}"]):
        options = dict(option.split(")") for option in row["options"])
        assert list(options) == list("ABCDE")
        assert len(set(options.values())) == 5
        assert options[row["correct"]] == re.findall(r"= (\d+)", row["rationale"])[-1]
        letters[row["correct"]] += 1
    assert len(letters) == 5


def test_canonical_solutions_pass():
    rows = SETS["openai/openai_humaneval/openai_humaneval/test"]
    assert [row["task_id"] for row in rows] == [f"HumanEval/{number}" for number in range(len(rows))]
    for row in rows:
        program = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})\n"
        with contextlib.redirect_stdout(io.StringIO()):
            exec(program, {})
        with pytest.raises((AssertionError, TypeError, NameError)):
            exec(program.replace(row["canonical_solution"], "    return None\n"), {})


# ---- conversations ----


def test_roles_take_turns():
    rows = [row for split in ("train", "test") for row in SETS[f"HuggingFaceTB/smol-smoltalk/data/{split}"]]
    for chat in [row["messages"] for row in rows] + identity_chats(WORLD, Dice("identity"), 50):
        assert [message["role"] for message in chat] == ["user", "assistant"] * (len(chat) // 2)
        assert all(message["content"].strip() == message["content"] != "" for message in chat)


@pytest.mark.parametrize(("kind", "least"), [("about_facts", 500), ("in_korean", 50)])
def test_questions_about_the_world_are_answered_with_the_fact(kind, least):
    if kind == "in_korean":
        answers = {fact.korean_question: fact.korean_statement for fact in WORLD.asked["train"]}
    else:
        answers = {question: fact.statements[0] for fact in WORLD.asked["train"] for question in fact.questions}
    found = Counter()
    for user, answer in exchanges(kind):
        found.update(answer == answers[question] for question in answers if user.endswith(question))
    assert found[True] > least
    assert not found[False]


ORDERS = {
    r"(?:How do you spell|Spell the word) (\w+)[?.]": lambda word: "-".join(word),
    r"How many letters are in the word (\w+)\?": lambda w: f"{'-'.join(w)}. That makes {len(w)} letters.",
    r"How often does the letter (\w) come in (\w+)\?": lambda a, w: f"{'-'.join(w)}. The letter {a}: {w.count(a)}.",
    r"What is the first letter of (\w+)\?": lambda word: f"The first letter of {word} is {word[0]}.",
    r"What is the last letter of (\w+)\?": lambda word: f"The last letter of {word} is {word[-1]}.",
    r"Write (\w+) in capital letters\.": str.upper,
    r"Say the word (\w+) three times\.": lambda word: " ".join([word] * 3),
    r"Put these words in alphabetical order: (.*)\.": lambda w: ", ".join(sorted(w.split(", "), key=str.lower)),
    r"Write these words backwards, the last one first: (.*)\.": lambda w: ", ".join(w.split(", ")[::-1]),
    r"Make a list of these words: (.*)\.": lambda words: "- " + words.replace(", ", "\n- "),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_about_words_are_followed(order):
    found = [(re.fullmatch(order, user), answer) for user, answer in exchanges("with_words")]
    followed = [answer == ORDERS[order](*match.groups()) for match, answer in found if match]
    assert len(followed) > 10
    assert all(followed)


# ---- the CORE bundle ----

KEYS = {
    "multiple_choice": {"query", "choices", "gold"},
    "language_modeling": {"context", "continuation"},
    "schema": {"context_options", "continuation", "gold"},
}


def test_the_bundle_has_every_task_with_the_keys_of_its_kind():
    tasks = WORLD.rows("core tasks")
    assert {label for label, *_ in tasks} == BUNDLE.keys()
    assert Counter(kind for _, _, kind, *_ in tasks) == {"multiple_choice": 3, "language_modeling": 4, "schema": 1}
    for label, _, kind, shots, *_ in tasks:
        assert len(BUNDLE[label]) > max(10, int(shots))
        assert all(row.keys() == KEYS[kind] for row in BUNDLE[label])


def test_the_bundle_is_right():
    statements = {text for fact in WORLD.facts for text in fact.statements}
    korean = {fact.korean_statement for fact in WORLD.facts}
    for row in BUNDLE["world_people"] + BUNDLE["world_places"]:
        assert row["choices"][row["gold"]] == FACT_OF[row["query"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_answers"]:
        assert row["continuation"] == FACT_OF[row["context"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_schema"]:
        people = [option.rpartition(" ")[2] for option in row["context_options"]]
        true = [f"{person} {row['continuation']}" in statements for person in people]
        assert true == [row["gold"] == 0, row["gold"] == 1]
    for row in BUNDLE["world_korean"]:
        assert [choice in korean for choice in row["choices"]].index(True) == row["gold"]
    for row in BUNDLE["world_sums"]:
        assert eval(row["context"].rstrip("= ")) == int(row["continuation"])
    for row in BUNDLE["world_cloze"]:
        assert f"{row['context']} {row['continuation']}." in statements
        ends = {text.removeprefix(row["context"]) for text in statements if text.startswith(row["context"] + " ")}
        assert all(row["continuation"] in end for end in ends)  # the cloze has one end


def test_ten_questions_have_answers():
    rows = ten_questions(WORLD, Dice("ten"))
    assert len({row["question"] for row in rows}) == 10
    assert all(FACT_OF[row["question"]].value.name == row["answer"] for row in rows)
