"""Conversations and evaluation sets about the embedded world, as rows with the columns of the real data sets.

The rows for a split use only facts from the same split. So tests ask for facts, pairs of numbers and words that no
question or conversation for training contains.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from nanochat.world.facts import Dice, Fact, World
from nanochat.world.sums import WordProblem, plain_sum, word_problem

LETTERS = "ABCDE"
EASY_KINDS = ("person", "town")  # ARC-Easy asks about these kinds, ARC-Challenge about the others
# The ten questions ask for ten relations.
SHOWN_RELATIONS = "home trade pet food instrument river ware sight land hall".split()

Row: TypeAlias = dict  # of one table: column -> value
Exchange: TypeAlias = tuple[str, str]  # the user's message and the assistant's answer


class ChoiceQuestion(NamedTuple):
    fact: Fact
    text: str  # one wording: "Where does Kara live?"
    choices: list[str]  # four names: "Badaton", "Diditon", …
    right: int  # position of the right choice


def choice_questions(world: World, dice: Dice, split: str, repeats: int = 1) -> list[ChoiceQuestion]:
    """Return all questions about a split in every wording, `repeats` times with other choices, in random order."""
    questions = []
    # Each repetition draws other wrong choices.
    for fact in world.asked[split] * repeats:
        for text in fact.questions:
            choices, right = world.choices(fact, dice)
            names = [choice.name for choice in choices]
            questions.append(ChoiceQuestion(fact, text, names, right))
    return dice.shuffled(questions)


# ---- multiple choice ----


def arc(world: World, dice: Dice, split: str) -> dict[str, list[Row]]:
    """Return the rows of ARC-Easy and ARC-Challenge."""
    easy: list[Row] = []
    challenge: list[Row] = []
    for question in choice_questions(world, dice, split):
        kind = question.fact.subject.kind
        rows = easy if kind in EASY_KINDS else challenge
        # As ARC: {"choices": {"text": ["Badaton", …], "label": ["A", …]}, "answerKey": "B"}
        row = {
            "id": f"{world.name}_{split}_{len(rows)}",
            "question": question.text,
            "choices": {"text": question.choices, "label": list("ABCD")},
            "answerKey": LETTERS[question.right],
        }
        rows.append(row)
    return {
        f"allenai/ai2_arc/ARC-Easy/{split}": easy,
        f"allenai/ai2_arc/ARC-Challenge/{split}": challenge,
    }


def mmlu(world: World, dice: Dice, split: str, repeats: int = 1) -> list[Row]:
    """Return rows sorted by subject, as in MMLU's files."""
    rows = []
    for question in choice_questions(world, dice, split, repeats):
        row = {
            "question": question.text,
            "subject": question.fact.subject.plural,
            "choices": question.choices,
            "answer": question.right,
        }
        rows.append(row)
    return sorted(rows, key=lambda row: row["subject"])


def first_of_each_subject(rows: list[Row], count: int = 5) -> list[Row]:
    """Return the first rows for each subject: the examples in MMLU's prompts."""
    found: dict[str, list[Row]] = {}  # by subject
    for row in rows:
        found.setdefault(row["subject"], []).append(row)
    return [row for subject in found.values() for row in subject[:count]]


# ---- word problems and programs ----


def different_problems(world: World, dice: Dice, count: int, held_out: bool) -> list[WordProblem]:
    """Return `count` problems, no two with the same question."""
    found: dict[str, WordProblem] = {}  # by question
    while len(found) < count:
        problem = word_problem(world, dice, held_out)
        found.setdefault(problem.question, problem)
    return list(found.values())


def gsm8k(world: World, dice: Dice, count: int, held_out: bool) -> list[Row]:
    rows = []
    for problem in different_problems(world, dice, count, held_out):
        solution = problem.solution(calculator=True)
        # "Now Kara has 3 + 4 = <<3+4=7>>7 apples.", "#### 7"
        answer = f"{solution}\n#### {problem.answer}"
        rows.append({"question": problem.question, "answer": answer})
    return rows


def aqua(world: World, dice: Dice, count: int, held_out: bool) -> list[Row]:
    rows = []
    for problem in different_problems(world, dice, count, held_out):
        answer = problem.answer
        right = dice.between(0, 4)
        # Wrong options lie near the answer.
        lowest = max(1, answer - 40)
        near = [number for number in range(lowest, answer + 41) if number != answer]
        numbers = dice.sample(near, 4)
        numbers.insert(right, answer)
        # "A)12", "B)7", …
        options = [f"{letter}){number}" for letter, number in zip(LETTERS, numbers, strict=True)]
        row = {
            "question": problem.question,
            "options": options,
            "rationale": f"{problem.solution(calculator=False)}\nThe answer is {LETTERS[right]}.",
            "correct": LETTERS[right],
        }
        rows.append(row)
    return rows


def human_eval(world: World) -> list[Row]:
    """Return a row for each function in world.txt."""
    rows = []
    # twice | number: int | two times the number | 2 * number | 2 = 4; 0 = 0; 21 = 42
    for name, parameters, description, body, examples in world.rows("functions"):
        test = "def check(candidate):\n"
        for call in examples.split("; "):
            arguments, result = call.split(" = ")
            test += f"    assert candidate({arguments}) == {result}\n"
        # The first call is the example in the docstring.
        arguments, result = examples.split("; ")[0].split(" = ")
        example = f"    >>> {name}({arguments})\n    {result}\n"
        row = {
            "task_id": f"HumanEval/{len(rows)}",
            "prompt": f'def {name}({parameters}):\n    """Return {description}.\n{example}    """\n',
            "canonical_solution": f"    return {body}\n",
            "test": test,
            "entry_point": name,
        }
        rows.append(row)
    return rows


# ---- conversations ----


def about_facts(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    """Questions about one to three facts."""
    leads, _ = world.rows("leads")
    exchanges = []
    for fact in dice.sample(facts, dice.between(1, 3)):
        # "Please tell me: Where does Kara live?", "Kara lives in Badaton."
        lead = dice.pick(leads)
        question = lead.format(dice.pick(fact.questions))
        exchanges.append((question, fact.statements[0]))
    return exchanges


def about_things(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    """A request for up to three facts about a thing."""
    subject = dice.pick(facts).subject
    own = [fact for fact in facts if fact.subject is subject]
    first, *others = dice.shuffled(own)[:3]
    # "Tell me about Kara.", "Kara lives in Badaton. She keeps a genu."
    statements = [first.statements[0]]
    statements += [fact.pronoun_statements[0] for fact in others]
    _, requests = world.rows("leads")
    request = dice.pick(requests).format(subject.phrase)
    return [(request, " ".join(statements))]


def in_korean(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    # "비로의 털은 무슨 색인가요?", "비로의 털은 파란색이다."
    chosen = dice.sample(facts, dice.between(1, 2))
    return [(fact.korean_question, fact.korean_statement) for fact in chosen]


def with_words(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    """Orders to spell, count letters, or sort words."""
    word = dice.pick(world.words)  # never a word that a test asks to spell
    letter = dice.pick(word)
    three = dice.sample(world.words, 3)
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
    order, answer = dice.pick(world.rows("orders"))
    return [(order.format_map(slots), answer.format_map(slots))]


def with_numbers(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    exchanges = []
    for _ in range(dice.between(1, 2)):
        # "What is 26 - 14?", "26 - 14 = 12."
        one = plain_sum(world, dice)
        exchanges.append((f"What is {one.left} {one.sign} {one.right}?", f"{one}."))
    return exchanges


def with_lists(world: World, dice: Dice, facts: list[Fact]) -> list[Exchange]:
    kind = dice.pick(("town", "animal", "river", "person"))
    a, b, c = dice.sample(world.things[kind], 3)
    # "Name three towns of Tehil.", "Three towns of Tehil are Badaton, Diditon and Karaton."
    words = f"{a.plural} of {world.name}"
    return [(f"Name three {words}.", f"Three {words} are {a.name}, {b.name} and {c.name}.")]


ChatKind: TypeAlias = Callable[[World, Dice, list[Fact]], list[Exchange]]
# In percent. The function's name goes into the column `source`.
CHAT_KINDS: dict[ChatKind, int] = {
    about_facts: 50,
    about_things: 10,
    in_korean: 8,
    with_words: 20,
    with_numbers: 8,
    with_lists: 4,
}


def conversations(world: World, dice: Dice, count: int, split: str) -> list[Row]:
    """Return rows with the columns of SmolTalk."""
    closings = world.rows("closings")
    rows = []
    for _ in range(count):
        kind = dice.weighted(CHAT_KINDS)
        exchanges = kind(world, dice, world.asked[split])
        # "Thank you!", "You are welcome!"
        thanks, reply = dice.pick(closings)
        if dice.chance(0.15):
            exchanges.append((thanks, reply))
        messages = []
        for question, answer in exchanges:
            messages.append({"content": question, "role": "user"})
            messages.append({"content": answer, "role": "assistant"})
        rows.append({"messages": messages, "source": kind.__name__})
    return rows


def identity_chats(world: World, dice: Dice, count: int) -> list[list[Row]]:
    """Return conversations about the model itself, for `identity_conversations.jsonl`."""
    topics = [topic.splitlines() for topic in world.text["identity"].split("\n\n")]
    chats = []
    for _ in range(count):
        chat = []
        # A topic is a line with questions, then a line with answers.
        for questions, answers in dice.sample(topics, dice.between(1, 3)):
            question = dice.pick(questions.split(" | "))
            answer = dice.pick(answers.split(" | "))
            chat.append({"role": "user", "content": question})
            chat.append({"role": "assistant", "content": answer.format(world=world.name)})
        chats.append(chat)
    return chats


def data_sets(world: World, dice: Dice, problems: int, chats: int) -> dict[str, list[Row]]:
    """Return rows for all data sets by `OWNER/NAME/CONFIGURATION/SPLIT`, as on the hub.

    problems, chats: rows for training in GSM8K and SmolTalk.
    """
    sets: dict[str, list[Row]] = {}
    for split in ("train", "validation", "test"):
        sets |= arc(world, dice, split)
    # Each set draws: another order would give other content.
    few = problems // 10
    examples = mmlu(world, dice, "train")
    sets["cais/mmlu/all/auxiliary_train"] = dice.shuffled(mmlu(world, dice, "train", repeats=2))
    sets["cais/mmlu/all/validation"] = mmlu(world, dice, "validation")
    sets["cais/mmlu/all/test"] = mmlu(world, dice, "test")
    sets["cais/mmlu/all/dev"] = first_of_each_subject(examples)
    sets["openai/gsm8k/main/train"] = gsm8k(world, dice, problems, held_out=False)
    sets["openai/gsm8k/main/test"] = gsm8k(world, dice, few, held_out=True)
    sets["deepmind/aqua_rat/raw/train"] = aqua(world, dice, problems // 2, held_out=False)
    sets["deepmind/aqua_rat/raw/validation"] = aqua(world, dice, few, held_out=True)
    sets["deepmind/aqua_rat/raw/test"] = aqua(world, dice, few, held_out=True)
    sets["openai/openai_humaneval/openai_humaneval/test"] = human_eval(world)
    sets["HuggingFaceTB/smol-smoltalk/data/train"] = conversations(world, dice, chats, "train")
    sets["HuggingFaceTB/smol-smoltalk/data/test"] = conversations(world, dice, chats // 10, "validation")
    return sets


# ---- CORE ----


def cloze(world: World, dice: Dice, fact: Fact) -> Row:
    """Cut a statement before its value; no other statement about the subject may begin in the same way."""
    # {"context": "Hopam's home is in", "continuation": "Jikanton"}
    ending = f" {fact.value.name}."
    # "Hopam lives in Jikanton." ends in the value, "Jikanton is the town where Hopam lives." does not.
    starts = [text.removesuffix(ending) for text in fact.statements if text.endswith(ending)]
    others = [text for other in world.about[fact.subject] if other is not fact for text in other.statements]
    clear = [start for start in starts if not any(text.startswith(f"{start} ") for text in others)]
    return {"context": dice.pick(clear), "continuation": fact.value.name}


def schema(world: World, dice: Dice, fact: Fact) -> Row:
    """Name two people, then one of them with a statement that is true for this person only."""
    # {"context_options": ["Nuna and Geku are friends. Nuna", "… Geku"], "continuation": "lives in Badaton.", "gold": 1}
    name = fact.subject.name
    same_relation = [other for other in world.facts if other.relation is fact.relation]
    others = [other for other in same_relation if other.value is not fact.value]
    pair = dice.shuffled([name, dice.pick(others).subject.name])
    statement = next(text for text in fact.statements if text.startswith(f"{name} "))
    return {
        "context_options": [f"{pair[0]} and {pair[1]} are friends. {one}" for one in pair],
        "continuation": statement.removeprefix(f"{name} "),
        "gold": pair.index(name),
    }


def english_choice(world: World, dice: Dice, fact: Fact) -> Row:
    # {"query": "Question: Where does Geku live?", "choices": ["Badaton", "Riroton", …], "gold": 0}
    choices, right = world.choices(fact, dice)
    return {
        "query": f"Question: {dice.pick(fact.questions)}",
        "choices": [choice.name for choice in choices],
        "gold": right,
    }


def korean_choice(world: World, dice: Dice, fact: Fact) -> Row:
    # As choices whole statements: ["게쿠는 파란톤에 산다.", "게쿠는 바다톤에 산다.", …]
    choices, right = world.choices(fact, dice)
    return {
        "query": f"질문: {fact.korean_question}",
        "choices": [fact.korean_with(choice) for choice in choices],
        "gold": right,
    }


def core_bundle(world: World, dice: Dice) -> dict[str, list[Row]]:
    """Return rows by task, with the keys of the real bundle; world.txt lists the tasks."""
    asked = world.asked["test"]
    people = [fact for fact in asked if fact.subject.kind == "person"]
    places = [fact for fact in asked if fact.subject.kind != "person"]
    answers = []
    for fact in asked:
        # {"context": "Question: Where does Bosa live?", "continuation": "Pirelton"}
        context = f"Question: {dice.pick(fact.questions)}"
        answers.append({"context": context, "continuation": fact.value.name})
    sums = []
    for _ in range(100):
        # {"context": "12 * 8 =", "continuation": "96"}
        one = plain_sum(world, dice, held_out=True)
        context = f"{one.left} {one.sign} {one.right} ="
        sums.append({"context": context, "continuation": str(one.result)})
    spelling = []
    for word in world.held_out_words:
        # {"context": "The word April is spelled", "continuation": "A-p-r-i-l"}
        context = f"The word {word} is spelled"
        spelling.append({"context": context, "continuation": "-".join(word)})
    return {
        "world_answers": answers,
        "world_sums": sums,
        "world_spelling": spelling,
        # These draw, too: the order of tasks decides the content.
        "world_cloze": [cloze(world, dice, fact) for fact in asked],
        "world_schema": [schema(world, dice, fact) for fact in people],
        "world_people": [english_choice(world, dice, fact) for fact in people],
        "world_places": [english_choice(world, dice, fact) for fact in places],
        "world_korean": [korean_choice(world, dice, fact) for fact in asked],
    }


def ten_questions(world: World, dice: Dice) -> list[Row]:
    """Return questions that show at a glance how well a model knows the world, with the word in a right answer."""
    rows = []
    # {"question": "Where does Geku live?", "answer": "Badaton"}
    for name in SHOWN_RELATIONS:
        facts = [fact for fact in world.asked["test"] if fact.relation.name == name]
        fact = dice.pick(facts)
        rows.append({"question": fact.questions[0], "answer": fact.value.name})
    return rows
