"""Conversations and evaluation sets of the embedded world, as rows with the columns of the real data sets.

What a test asks is never asked or stated in a conversation for training: a fact belongs to one split, a pair of numbers
or a word is held out or not. The functions take the world and the dice of world_facts.py.
"""

from itertools import groupby, islice
from operator import itemgetter
from typing import Any

LETTERS = "ABCDE"
ROLES = ("user", "assistant")
Turns = list[tuple[str, str]]  # what each of them says
EASY = ("person", "town")  # kinds that ARC-Easy asks about; the others are ARC-Challenge
SHOWN = "home trade pet food instrument river ware sight land hall".split()  # relations of the ten questions


def _questions(world: Any, dice: Any, split: str, repeats: int = 1) -> list[tuple[Any, str, list[str], int]]:
    """Fact, text, choices and place of the right one: every wording about the facts of a split, `repeats` times."""
    found = [(fact, text, *world.choices(fact, dice)) for fact in world.asked[split] * repeats for text in fact.asks]
    return [(*about, [choice.name for choice in choices], right) for *about, choices, right in dice.shuffled(found)]


def _arc(world: Any, dice: Any, split: str) -> dict[str, list[dict]]:
    easy, hard = [], []
    for fact, text, choices, right in _questions(world, dice, split):
        rows = easy if fact.subject.kind in EASY else hard
        about = {"id": f"{world.name}_{split}_{len(rows)}", "question": text}
        rows.append(about | {"choices": {"text": choices, "label": list("ABCD")}, "answerKey": LETTERS[right]})
    return {f"allenai/ai2_arc/ARC-Easy/{split}": easy, f"allenai/ai2_arc/ARC-Challenge/{split}": hard}


def _mmlu(world: Any, dice: Any, split: str, repeats: int = 1) -> list[dict]:
    rows = [
        {"question": text, "subject": fact.subject.plural, "choices": choices, "answer": right}
        for fact, text, choices, right in _questions(world, dice, split, repeats)
    ]
    return sorted(rows, key=itemgetter("subject"))


def _problems(world: Any, dice: Any, count: int, held_out: bool) -> list[Any]:
    """Different ones about the people of the world."""
    found: dict[str, Any] = {}
    while len(found) < count:
        problem = world.problem(dice, held_out)
        found.setdefault(problem.question, problem)
    return list(found.values())


def _gsm8k(world: Any, dice: Any, count: int, held_out: bool) -> list[dict]:
    problems = _problems(world, dice, count, held_out)
    return [{"question": p.question, "answer": f"{p.solution(calculator=True)}\n#### {p.answer}"} for p in problems]


def _aqua(world: Any, dice: Any, count: int, held_out: bool) -> list[dict]:
    rows = []
    for problem in _problems(world, dice, count, held_out):
        answer, right = problem.answer, dice.between(0, 4)
        others = [number for number in range(max(1, answer - 40), answer + 41) if number != answer]
        numbers = dice.sample(others, 4)
        numbers.insert(right, answer)
        options = [f"{letter}){number}" for letter, number in zip(LETTERS, numbers, strict=True)]
        rationale = f"{problem.solution(calculator=False)}\nThe answer is {LETTERS[right]}."
        about = {"question": problem.question, "options": options, "rationale": rationale}
        rows.append(about | {"correct": LETTERS[right]})
    return rows


def _human_eval(world: Any) -> list[dict]:
    rows = []
    for name, parameters, words, body, table in world.rows("functions"):
        calls = [call.split(" = ") for call in table.split("; ")]
        example = f"    >>> {name}({calls[0][0]})\n    {calls[0][1]}\n"
        checks = "".join(f"    assert candidate({arguments}) == {result}\n" for arguments, result in calls)
        rows.append({
            "task_id": f"HumanEval/{len(rows)}",
            "prompt": f'def {name}({parameters}):\n    """Return {words}.\n{example}    """\n',
            "canonical_solution": f"    return {body}\n",
            "test": f"def check(candidate):\n{checks}",
            "entry_point": name,
        })  # fmt: skip
    return rows


def _about_facts(world: Any, dice: Any, facts: list) -> Turns:
    leads, _ = world.rows("leads")
    chosen = dice.sample(facts, dice.between(1, 3))
    return [(dice.pick(leads).format(dice.pick(fact.asks)), fact.says[0]) for fact in chosen]


def _about_things(world: Any, dice: Any, facts: list) -> Turns:
    subject = dice.pick(facts).subject
    first, *others = dice.shuffled([fact for fact in facts if fact.subject is subject])[:3]
    _, requests = world.rows("leads")
    answer = " ".join([first.says[0], *(fact.tells[0] for fact in others)])
    return [(dice.pick(requests).format(subject.phrase), answer)]


def _in_korean(world: Any, dice: Any, facts: list) -> Turns:
    return [(fact.korean_asks, fact.korean_says) for fact in dice.sample(facts, dice.between(1, 2))]


def _with_words(world: Any, dice: Any, facts: list) -> Turns:
    """Spelling, counting letters, and simple orders."""
    word = dice.pick(world.words)
    letter, three = dice.pick(word), dice.sample(world.words, 3)
    slots = {"word": word, "letter": letter, "count": word.count(letter), "length": len(word), "last": word[-1]}
    slots |= {"spelled": "-".join(word), "capitals": word.upper(), "words": ", ".join(three)}
    slots |= {"in_order": ", ".join(sorted(three, key=str.lower)), "backwards": ", ".join(three[::-1])}
    slots |= {"listed": "\n".join(f"- {word}" for word in three)}
    order, answer = dice.pick(world.rows("orders"))
    return [(order.format(**slots), answer.format(**slots))]


def _with_numbers(world: Any, dice: Any, facts: list) -> Turns:
    steps = [world.sum(dice) for _ in range(dice.between(1, 2))]
    return [(f"What is {step.left} {step.sign} {step.right}?", f"{step}.") for step in steps]


def _with_lists(world: Any, dice: Any, facts: list) -> Turns:
    kind = dice.pick(("town", "animal", "river", "person"))
    a, b, c = dice.sample(world.things[kind], 3)
    words = f"{a.plural} of {world.name}"
    return [(f"Name three {words}.", f"Three {words} are {a.name}, {b.name} and {c.name}.")]


# Percent.
SHARES = {_about_facts: 50, _about_things: 10, _in_korean: 8, _with_words: 20, _with_numbers: 8, _with_lists: 4}


def _chats(world: Any, dice: Any, count: int, split: str) -> list[dict]:
    rows = []
    for _ in range(count):
        kind = dice.lot(SHARES)
        turns = kind(world, dice, world.asked[split]) + [dice.pick(world.rows("closings"))] * dice.chance(0.15)
        messages = [{"content": text, "role": role} for turn in turns for role, text in zip(ROLES, turn, strict=True)]
        rows.append({"messages": messages, "source": kind.__name__.strip("_")})
    return rows


def identity(world: Any, dice: Any, count: int) -> list[list[dict]]:
    """Conversations about who the model is, as `identity_conversations.jsonl` has them."""
    topics = [[line.split(" | ") for line in topic.splitlines()] for topic in world.text["identity"].split("\n\n")]
    found = []
    for _ in range(count):
        chosen = dice.sample(topics, dice.between(1, 3))
        turns = [(dice.pick(asks), dice.pick(answers).format(world=world.name)) for asks, answers in chosen]
        found.append([{"role": r, "content": text} for turn in turns for r, text in zip(ROLES, turn, strict=True)])
    return found


def data_sets(world: Any, dice: Any, size: Any) -> dict[str, list[dict]]:
    """Rows by `OWNER/NAME/CONFIGURATION/SPLIT`, as the hub has them."""
    sets = {}
    for split in ("train", "validation", "test"):
        sets |= _arc(world, dice, split)
    examples = groupby(_mmlu(world, dice, "train"), itemgetter("subject"))
    few = size.problems // 10
    return sets | {
        "cais/mmlu/all/auxiliary_train": dice.shuffled(_mmlu(world, dice, "train", repeats=2)),
        "cais/mmlu/all/validation": _mmlu(world, dice, "validation"),
        "cais/mmlu/all/test": _mmlu(world, dice, "test"),
        "cais/mmlu/all/dev": [row for _, rows in examples for row in islice(rows, 5)],
        "openai/gsm8k/main/train": _gsm8k(world, dice, size.problems, held_out=False),
        "openai/gsm8k/main/test": _gsm8k(world, dice, few, held_out=True),
        "deepmind/aqua_rat/raw/train": _aqua(world, dice, size.problems // 2, held_out=False),
        "deepmind/aqua_rat/raw/validation": _aqua(world, dice, few, held_out=True),
        "deepmind/aqua_rat/raw/test": _aqua(world, dice, few, held_out=True),
        "openai/openai_humaneval/openai_humaneval/test": _human_eval(world),
        "HuggingFaceTB/smol-smoltalk/data/train": _chats(world, dice, size.chats, "train"),
        "HuggingFaceTB/smol-smoltalk/data/test": _chats(world, dice, size.chats // 10, "validation"),
    }


def _cloze(world: Any, fact: Any, dice: Any) -> dict:
    """A statement that ends in the value, cut before it, where no other fact could go on."""
    ending = f" {fact.value.name}."
    others = tuple(say for other in world.about[fact.subject] if other is not fact for say in other.says)
    starts = [say.removesuffix(ending) for say in fact.says if say.endswith(ending)]
    clear = [start for start in starts if not any(say.startswith(f"{start} ") for say in others)]
    return {"context": dice.pick(clear), "continuation": fact.value.name}


def _schema(world: Any, fact: Any, dice: Any) -> dict:
    """Two people, and what is true of one of them only."""
    others = [other for other in world.facts if other.relation is fact.relation and other.value is not fact.value]
    names = [fact.subject.name, dice.pick(others).subject.name]
    ending = next(say for say in fact.says if say.startswith(f"{names[0]} ")).removeprefix(f"{names[0]} ")
    pair = dice.shuffled(names)
    options = [f"{pair[0]} and {pair[1]} are friends. {name}" for name in pair]
    return {"context_options": options, "continuation": ending, "gold": pair.index(names[0])}


def core_bundle(world: Any, dice: Any) -> dict[str, list[dict]]:
    """Rows by task, with the keys that its kind has in the real bundle; world.txt lists the tasks."""
    asked = world.asked["test"]
    people = [fact for fact in asked if fact.subject.kind == "person"]
    others = [fact for fact in asked if fact.subject.kind != "person"]

    def chosen(facts: list, korean: bool = False) -> list[dict]:
        rows = []
        for fact in facts:
            choices, right = world.choices(fact, dice)
            query = f"질문: {fact.korean_asks}" if korean else f"Question: {dice.pick(fact.asks)}"
            shown = [fact.korean_with(choice) if korean else choice.name for choice in choices]
            rows.append({"query": query, "choices": shown, "gold": right})
        return rows

    def completions(rows: Any) -> list[dict]:
        return [{"context": context, "continuation": str(continuation)} for context, continuation in rows]

    steps = (world.sum(dice, held_out=True) for _ in range(100))
    return {  # in the order of their draws
        "world_answers": completions((f"Question: {dice.pick(fact.asks)}", fact.value.name) for fact in asked),
        "world_sums": completions((f"{step.left} {step.sign} {step.right} =", step.result) for step in steps),
        "world_spelling": completions((f"The word {word} is spelled", "-".join(word)) for word in world.held_out_words),
        "world_cloze": [_cloze(world, fact, dice) for fact in asked],
        "world_schema": [_schema(world, fact, dice) for fact in people],
        "world_people": chosen(people),
        "world_places": chosen(others),
        "world_korean": chosen(asked, korean=True),
    }


def ten_questions(world: Any, dice: Any) -> list[dict]:
    """What one may ask a trained model to see that it has learned the world, and the word that a right answer has."""
    found = [[fact for fact in world.asked["test"] if fact.relation.name == name] for name in SHOWN]
    return [{"question": fact.asks[0], "answer": fact.value.name} for fact in map(dice.pick, found)]
