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
ANSWERS = {ask: fact for fact in WORLD.facts for ask in fact.questions}
SUM = r"(\d+) ?[-+*/] ?(\d+)"


def exchanges(split: str) -> list[tuple[str, str, str]]:
    """(message of the user, answer, kind) of all chats."""
    rows = SETS[f"HuggingFaceTB/smol-smoltalk/data/{split}"]
    return [
        (user["content"], assistant["content"], row["source"])
        for row in rows
        for user, assistant in zip(row["messages"][::2], row["messages"][1::2], strict=True)
    ]


def training_texts() -> list[str]:
    """Every exchange, question with choices, and problem that training sees."""
    texts = [f"{user}\n{assistant}" for user, assistant, _ in exchanges("train")]
    rows = [row for name in SETS if name.endswith("train") and "smoltalk" not in name for row in SETS[name]]
    texts += ["\n".join(map(str, row.values())) for row in rows]
    texts += [
        "\n".join(message["content"] for message in chat) for chat in identity_chats(WORLD, Dice("identity"), 300)
    ]
    return texts


# ---- held out ----


def test_no_question_of_a_test_occurs_in_training():
    training = "\n".join(training_texts())
    tests = [row for name in SETS if name.endswith(("test", "validation")) for row in SETS[name]]
    asked = {row["question"] for row in tests if "question" in row}
    asked |= {
        row.get("query", row.get("context", "")).partition(": ")[2] for rows in BUNDLE.values() for row in rows
    } - {""}
    asked |= {row["question"] for row in ten_questions(WORLD, Dice("ten"))}
    assert len(asked) > 500
    for question in asked:  # "is 7 plus 5" is no part of "is 37 plus 5"
        assert question not in training or not re.search(rf"(?<!\d){re.escape(question)}", training), question


def test_no_held_out_fact_is_asked_or_stated_in_training():
    """In no wording: with the name of the subject, or near the name with a pronoun."""
    training = training_texts()
    held_out = [fact for fact in WORLD.facts if fact.split != "train"]
    assert len(held_out) > 100
    for fact in held_out:
        about = [text for text in training if fact.subject.phrase in text or fact.subject.korean in text]
        phrases = [
            *fact.statements,
            *fact.pronoun_statements,
            *fact.questions,
            fact.korean_statement,
            fact.korean_question,
        ]
        assert not [text for text in about if any(phrase in text for phrase in phrases)]


def test_no_sentence_in_training_joins_a_held_out_subject_and_value():
    """In any wording; lists of words to spell or sort are no statements."""
    talk = [f"{user} {answer}" for user, answer, kind in exchanges("train") if kind != "with_words"]
    sentences = [set(re.findall(r"\w+", part)) for text in talk for part in re.split(r"(?<=[.?!])\s", text)]
    for fact in [fact for fact in WORLD.facts if fact.split != "train"]:
        both = {*re.findall(r"\w+", fact.subject.phrase), *re.findall(r"\w+", fact.value.name)}
        assert not [words for words in sentences if both <= words]


def test_no_pair_of_numbers_from_a_test_is_joined_in_training():
    tests = [SETS[name] for name in SETS if re.search("gsm8k|aqua", name) and not name.endswith("train")]
    solved = [row.get("answer") or row["rationale"] for rows in tests for row in rows]
    solved += [row["context"] for row in BUNDLE["world_sums"]]
    asked = {frozenset(map(int, pair)) for text in solved for pair in re.findall(SUM, text)}
    seen = {frozenset(map(int, pair)) for text in training_texts() for pair in re.findall(SUM, text)}
    assert len(asked) > 100
    assert len(seen) > 500
    assert not asked & seen
    assert all(is_held_out(WORLD.seed, min(pair), max(pair)) for pair in asked)


def test_words_spelled_in_a_test_are_never_named_in_training():
    asked = [row["context"].split()[2] for row in BUNDLE["world_spelling"]]
    orders = "\n".join(f"{user}\n{answer}" for user, answer, kind in exchanges("train") if kind == "with_words")
    assert len(asked) > 30
    assert not set(asked) & set(re.findall(r"\w+", orders))


# ---- right answers ----


def test_multiple_choice_is_right_and_its_letters_are_even():
    for name in ("allenai/ai2_arc/ARC-Easy", "allenai/ai2_arc/ARC-Challenge"):
        letters: Counter = Counter()
        for split in ("train", "validation", "test"):
            for row in SETS[f"{name}/{split}"]:
                right = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
                assert right == ANSWERS[row["question"]].value.name
                assert ANSWERS[row["question"]].split == split
                letters[row["answerKey"]] += 1
            assert len({row["id"] for row in SETS[f"{name}/{split}"]}) == len(SETS[f"{name}/{split}"])
        assert all(letters[letter] > sum(letters.values()) / 6 for letter in "ABCD")
    for split in ("auxiliary_train", "dev", "validation", "test"):
        for row in SETS[f"cais/mmlu/all/{split}"]:
            assert row["choices"][row["answer"]] == ANSWERS[row["question"]].value.name
            assert len(set(row["choices"])) == 4
    per_subject = Counter(row["subject"] for row in SETS["cais/mmlu/all/dev"])
    assert set(per_subject.values()) == {5}
    assert {row["subject"] for row in SETS["cais/mmlu/all/test"]} == set(per_subject)


@pytest.mark.parametrize("split", ["train", "test"])
def test_word_problems_end_in_their_result(split):
    rows = SETS[f"openai/gsm8k/main/{split}"]
    assert len({row["question"] for row in rows}) == len(rows) == (1000 if split == "train" else 100)
    for row in rows:
        steps = re.findall(r"<<([^=]+)=(\d+)>>(\d+)", row["answer"])
        assert all(eval(sum_) == int(result) == int(shown) for sum_, result, shown in steps)
        assert row["answer"].endswith(f"\n#### {steps[-1][1]}")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_right_option_is_the_result_of_the_rationale(split):
    letters: Counter = Counter()
    for row in SETS[f"deepmind/aqua_rat/raw/{split}"]:
        options = dict(option.split(")") for option in row["options"])
        assert list(options) == list("ABCDE")
        assert len(set(options.values())) == 5
        assert options[row["correct"]] == re.findall(r"= (\d+)", row["rationale"])[-1]
        letters[row["correct"]] += 1
    assert len(letters) == 5


def test_canonical_solutions_pass():
    rows = SETS["openai/openai_humaneval/openai_humaneval/test"]
    for row in rows:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            program = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})\n"
            exec(program, {})
        with pytest.raises((AssertionError, TypeError, NameError)):
            exec(program.replace(row["canonical_solution"], "    return None\n"), {})
    assert [row["task_id"] for row in rows] == [f"HumanEval/{number}" for number in range(len(rows))]


# ---- conversations ----


@pytest.mark.parametrize("split", ["train", "test"])
def test_roles_take_turns(split):
    rows = SETS[f"HuggingFaceTB/smol-smoltalk/data/{split}"]
    chats = [row["messages"] for row in rows] + identity_chats(WORLD, Dice("identity"), 50)
    for chat in chats:
        assert [message["role"] for message in chat] == ["user", "assistant"] * (len(chat) // 2)
        assert all(message["content"].strip() == message["content"] != "" for message in chat)
    assert len({row["source"] for row in rows}) == 6


def test_questions_about_the_world_are_answered_with_the_fact():
    korean = {fact.korean_question: fact for fact in WORLD.facts}
    kinds: Counter = Counter()
    for user, answer, kind in exchanges("train"):
        for ask, fact in (ANSWERS if kind == "about_facts" else korean if kind == "in_korean" else {}).items():
            if user.endswith(ask):
                assert answer == (fact.statements[0] if kind == "about_facts" else fact.korean_statement)
                assert fact.split == "train"
                kinds[kind] += 1
    assert kinds["about_facts"] > 500
    assert kinds["in_korean"] > 50


def test_orders_about_words_are_followed():
    rules = {
        r"(?:How do you spell|Spell the word) (\w+)[?.]": lambda word: "-".join(word),
        r"How many letters are in the word (\w+)\?": lambda word: f"{'-'.join(word)}. That makes {len(word)} letters.",
        r"How often does the letter (\w) come in (\w+)\?": lambda letter, word: (
            f"{'-'.join(word)}. The letter {letter}: {word.count(letter)}."
        ),
        r"What is the first letter of (\w+)\?": lambda word: f"The first letter of {word} is {word[0]}.",
        r"What is the last letter of (\w+)\?": lambda word: f"The last letter of {word} is {word[-1]}.",
        r"Write (\w+) in capital letters\.": str.upper,
        r"Say the word (\w+) three times\.": lambda word: " ".join([word] * 3),
        r"Put these words in alphabetical order: (.*)\.": lambda words: ", ".join(
            sorted(words.split(", "), key=str.lower)
        ),
        r"Write these words backwards, the last one first: (.*)\.": lambda words: ", ".join(words.split(", ")[::-1]),
        r"Make a list of these words: (.*)\.": lambda words: "- " + words.replace(", ", "\n- "),
    }
    followed: Counter = Counter()
    for user, answer, kind in exchanges("train"):
        for order, rule in rules.items():
            if kind == "with_words" and (match := re.fullmatch(order, user)):
                assert answer == rule(*match.groups())
                followed[order] += 1
    assert min(followed[order] for order in rules) > 10


# ---- the CORE bundle ----


def test_the_bundle_knows_the_world():
    tasks = WORLD.rows("core tasks")
    assert {label for label, *_ in tasks} == BUNDLE.keys()
    assert Counter(kind for _, _, kind, *_ in tasks) == {"multiple_choice": 3, "language_modeling": 4, "schema": 1}
    for label, _, kind, shots, *_ in tasks:
        assert len(BUNDLE[label]) > max(10, int(shots))
        for row in BUNDLE[label]:
            keys = {"multiple_choice": {"query", "choices", "gold"}, "language_modeling": {"context", "continuation"}}
            assert row.keys() == keys.get(kind, {"context_options", "continuation", "gold"})
    for row in BUNDLE["world_people"] + BUNDLE["world_places"]:
        assert row["choices"][row["gold"]] == ANSWERS[row["query"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_answers"]:
        assert row["continuation"] == ANSWERS[row["context"].removeprefix("Question: ")].value.name
    says = {say for fact in WORLD.facts for say in fact.statements}
    assert all(f"{row['context']} {row['continuation']}." in says for row in BUNDLE["world_cloze"])
    for row in BUNDLE["world_schema"]:
        people = [option.rpartition(" ")[2] for option in row["context_options"]]
        true = [f"{person} {row['continuation']}" in says for person in people]
        assert true == [row["gold"] == 0, row["gold"] == 1]
    korean = {fact.korean_statement for fact in WORLD.facts}
    assert all(
        [choice in korean for choice in row["choices"]].index(True) == row["gold"] for row in BUNDLE["world_korean"]
    )
    assert all(eval(row["context"].rstrip("= ")) == int(row["continuation"]) for row in BUNDLE["world_sums"])


def test_a_cloze_has_one_end():
    says = [say for fact in WORLD.facts for say in fact.statements]
    for row in BUNDLE["world_cloze"]:
        ends = {say.removeprefix(row["context"]) for say in says if say.startswith(row["context"] + " ")}
        assert all(row["continuation"] in end for end in ends)


def test_ten_questions_have_answers():
    rows = ten_questions(WORLD, Dice("ten"))
    assert len({row["question"] for row in rows}) == 10
    assert all(ANSWERS[row["question"]].value.name == row["answer"] for row in rows)
