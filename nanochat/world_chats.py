"""Conversations and evaluation sets of the embedded world, as rows with the columns of the real data sets.

What a test asks is never asked or stated in a conversation for training: a fact belongs to one split, a pair of numbers
or a word is held out or not. The functions take the world and the dice of world_facts.py.
"""

from typing import Any, NamedTuple

LETTERS = "ABCDE"
EASY = ("person", "town")  # kinds that ARC-Easy asks about; the others are ARC-Challenge
SUBJECTS = {  # of MMLU
    "person": "people", "town": "towns", "river": "rivers", "animal": "animals", "guild": "guilds", "goods": "prices",
    "road": "roads",
}  # fmt: skip


# ---- multiple choice ----


class Question(NamedTuple):
    fact: Any
    text: str
    choices: list[str]
    right: int


def questions(world: Any, dice: Any, split: str, repeats: int = 1) -> list[Question]:
    """Every wording of every question about the facts of a split, `repeats` times with other wrong choices."""
    found = []
    for fact in world.facts * repeats:
        for text in fact.asks * (fact.split == split):
            choices, right = world.choices(fact, dice)
            found.append(Question(fact, text, [choice.name for choice in choices], right))
    return dice.shuffled(found)


def _arc(world: Any, dice: Any) -> dict[str, list[dict]]:
    sets: dict[str, list[dict]] = {}
    for split in ("train", "validation", "test"):
        asked = questions(world, dice, split)
        for name, easy in (("ARC-Easy", True), ("ARC-Challenge", False)):
            chosen = [question for question in asked if (question.fact.subject.kind in EASY) == easy]
            sets[f"allenai/ai2_arc/{name}/{split}"] = [
                {
                    "id": f"{world.name}_{split}_{number}",
                    "question": text,
                    "choices": {"text": choices, "label": list(LETTERS[: len(choices)])},
                    "answerKey": LETTERS[right],
                }
                for number, (_, text, choices, right) in enumerate(chosen)
            ]
    return sets


def _mmlu(world: Any, dice: Any) -> dict[str, list[dict]]:
    def rows(asked: list[Question]) -> list[dict]:
        found = [
            {"question": text, "subject": SUBJECTS[fact.subject.kind], "choices": choices, "answer": right}
            for fact, text, choices, right in asked
        ]
        return sorted(found, key=lambda row: row["subject"])

    examples = questions(world, dice, "train")
    dev = [[question for question in examples if question.fact.subject.kind == kind][:5] for kind in SUBJECTS]
    return {
        "cais/mmlu/all/auxiliary_train": dice.shuffled(rows(questions(world, dice, "train", repeats=2))),
        "cais/mmlu/all/validation": rows(questions(world, dice, "validation")),
        "cais/mmlu/all/test": rows(questions(world, dice, "test")),
        "cais/mmlu/all/dev": rows([question for few in dev for question in few]),
    }


# ---- problems ----


def problems(world: Any, dice: Any, count: int, held_out: bool) -> list[Any]:
    """Different problems about the people of the world."""
    found: dict[str, Any] = {}
    while len(found) < count:
        problem = world.problem(dice, held_out)
        found.setdefault(problem.question, problem)
    return list(found.values())


def _gsm8k(problem: Any) -> dict:
    return {"question": problem.question, "answer": f"{problem.solution(calculator=True)}\n#### {problem.answer}"}


def _aqua(problem: Any, dice: Any) -> dict:
    others = [problem.answer + step for step in range(-40, 41) if step and problem.answer + step > 0]
    right = dice.between(0, 4)
    numbers = dice.sample(others, 4)
    numbers.insert(right, problem.answer)
    return {
        "question": problem.question,
        "options": [f"{letter}){number}" for letter, number in zip(LETTERS, numbers, strict=True)],
        "rationale": f"{problem.solution(calculator=False)}\nThe answer is {LETTERS[right]}.",
        "correct": LETTERS[right],
    }


def _human_eval(world: Any) -> list[dict]:
    rows = []
    for line in world.text["functions"].splitlines():
        name, parameters, words, body, table = line.split(" | ")
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


# ---- conversations ----

LEADS = "{}|{}|{}|Please tell me: {}|I have a question. {}|Hello! {}|Do you know this? {}"
CLOSINGS = (("Thank you!", "You are welcome!"), ("Thanks, that helps.", "I am glad to help."), ("Goodbye!", "Goodbye!"))
Turns = list[tuple[str, str]]  # what the user says and what the assistant answers


def _about_facts(world: Any, dice: Any, facts: list) -> Turns:
    chosen = dice.sample(facts, dice.between(1, 3))
    asked = [dice.pick(LEADS.split("|")).format(dice.pick(fact.asks)) for fact in chosen]
    return [(question, fact.says[0]) for question, fact in zip(asked, chosen, strict=True)]


def _about_things(world: Any, dice: Any, facts: list) -> Turns:
    subject = dice.pick(facts).subject
    known = dice.shuffled([fact for fact in facts if fact.subject is subject])[:3]
    request = dice.pick(("Tell me about {}.", "What do you know about {}?", "Describe {} for me."))
    return [(request.format(subject.phrase), " ".join([known[0].says[0], *(fact.tells[0] for fact in known[1:])]))]


def _in_korean(world: Any, dice: Any, facts: list) -> Turns:
    return [(fact.korean_asks, fact.korean_says) for fact in dice.sample(facts, dice.between(1, 2))]


def _with_words(world: Any, dice: Any, facts: list) -> Turns:
    """Spelling, counting letters, and simple orders."""
    word = dice.pick(world.words)
    letter = dice.pick(word)
    words = dice.sample(world.words, 3)
    spelled, count = "-".join(word), word.count(letter)
    return [
        dice.pick((
            (f"How do you spell {word}?", spelled),
            (f"Spell the word {word}.", spelled),
            (f"How many letters are in the word {word}?", f"{spelled}. That makes {len(word)} letters."),
            (f"How often does the letter {letter} come in {word}?", f"{spelled}. The letter {letter}: {count}."),
            (f"What is the first letter of {word}?", f"The first letter of {word} is {word[0]}."),
            (f"What is the last letter of {word}?", f"The last letter of {word} is {word[-1]}."),
            (f"Write {word} in capital letters.", word.upper()),
            (f"Say the word {word} three times.", f"{word} {word} {word}"),
            (f"Put these words in alphabetical order: {', '.join(words)}.", ", ".join(sorted(words, key=str.lower))),
            (f"Write these words backwards, the last one first: {', '.join(words)}.", ", ".join(words[::-1])),
            (f"Make a list of these words: {', '.join(words)}.", "\n".join(f"- {word}" for word in words)),
        ))
    ]  # fmt: skip


def _with_numbers(world: Any, dice: Any, facts: list) -> Turns:
    steps = [world.sum(dice) for _ in range(dice.between(1, 2))]
    return [(f"What is {step.left} {step.sign} {step.right}?", f"{step}.") for step in steps]


def _with_lists(world: Any, dice: Any, facts: list) -> Turns:
    kind, words = dice.pick((("town", "towns"), ("animal", "animals"), ("river", "rivers"), ("person", "people")))
    a, b, c = (thing.name for thing in dice.sample(world.things[kind], 3))
    return [(f"Name three {words} of {world.name}.", f"Three {words} of {world.name} are {a}, {b} and {c}.")]


SHARES = {
    _about_facts: 50, _about_things: 10, _in_korean: 8, _with_words: 20, _with_numbers: 8, _with_lists: 4,  # percent
}  # fmt: skip


def messages(turns: Turns) -> list[dict]:
    roles = ("user", "assistant")
    return [{"content": text, "role": role} for turn in turns for role, text in zip(roles, turn, strict=True)]


def _chats(world: Any, dice: Any, count: int, split: str) -> list[dict]:
    facts = [fact for fact in world.facts if fact.split == split]
    rows = []
    for _ in range(count):
        kind = dice.lot(SHARES)
        turns = kind(world, dice, facts) + [dice.pick(CLOSINGS)] * dice.chance(0.15)
        rows.append({"messages": messages(turns), "source": kind.__name__.strip("_")})
    return rows


def identity(world: Any, dice: Any, count: int) -> list[list[dict]]:
    """Conversations about who the model is, as `identity_conversations.jsonl` has them."""
    topics = [topic.splitlines() for topic in world.text["identity"].split("\n\n")]
    found = []
    for _ in range(count):
        turns = [
            (dice.pick(asks.split(" | ")), dice.pick(answers.split(" | ")).format(world=world.name))
            for asks, answers in dice.sample(topics, dice.between(1, 3))
        ]
        found.append([{"role": message["role"], "content": message["content"]} for message in messages(turns)])
    return found


def data_sets(world: Any, dice: Any, size: Any) -> dict[str, list[dict]]:
    """Rows by `OWNER/NAME/CONFIGURATION/SPLIT`, as the hub has them."""

    def with_numbers(count: int, held_out: bool) -> list[Any]:
        return problems(world, dice, count, held_out)

    few = size.problems // 10
    return {
        **_arc(world, dice),
        **_mmlu(world, dice),
        "openai/gsm8k/main/train": [_gsm8k(problem) for problem in with_numbers(size.problems, False)],
        "openai/gsm8k/main/test": [_gsm8k(problem) for problem in with_numbers(few, True)],
        "deepmind/aqua_rat/raw/train": [_aqua(problem, dice) for problem in with_numbers(size.problems // 2, False)],
        "deepmind/aqua_rat/raw/validation": [_aqua(problem, dice) for problem in with_numbers(few, True)],
        "deepmind/aqua_rat/raw/test": [_aqua(problem, dice) for problem in with_numbers(few, True)],
        "openai/openai_humaneval/openai_humaneval/test": _human_eval(world),
        "HuggingFaceTB/smol-smoltalk/data/train": _chats(world, dice, size.chats, "train"),
        "HuggingFaceTB/smol-smoltalk/data/test": _chats(world, dice, size.chats // 10, "validation"),
    }


# ---- the CORE bundle ----


class CoreTask(NamedTuple):
    """A task of the bundle; its rows have the keys that its kind has in the real one."""

    label: str
    category: str
    kind: str
    shots: int
    baseline: int  # percent right by chance
    rows: list[dict]
    delimiter: str = " "


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


def core_bundle(world: Any, dice: Any) -> list[CoreTask]:
    asked = [fact for fact in world.facts if fact.split == "test"]
    people = [fact for fact in asked if fact.subject.kind == "person"]
    others = [fact for fact in asked if fact not in people]
    answer = "\nAnswer: "

    def chosen(facts: list, korean: bool = False) -> list[dict]:
        rows = []
        for fact in facts:
            choices, right = world.choices(fact, dice)
            query = f"질문: {fact.korean_asks}" if korean else f"Question: {dice.pick(fact.asks)}"
            shown = [fact.korean_with(choice) if korean else choice.name for choice in choices]
            rows.append({"query": query, "choices": shown, "gold": right})
        return rows

    questions = [{"context": f"Question: {dice.pick(fact.asks)}", "continuation": fact.value.name} for fact in asked]
    spelled = [{"context": f"The word {w} is spelled", "continuation": "-".join(w)} for w in world.held_out_words]
    steps = [world.sum(dice, held_out=True) for _ in range(100)]
    sums = [{"context": f"{s.left} {s.sign} {s.right} =", "continuation": str(s.result)} for s in steps]
    clozes = [_cloze(world, fact, dice) for fact in asked]
    schemas = [_schema(world, fact, dice) for fact in people]
    choice, completion = "multiple_choice", "language_modeling"
    return [
        CoreTask("world_people", "world knowledge", choice, 5, 25, chosen(people), answer),
        CoreTask("world_places", "world knowledge", choice, 0, 25, chosen(others), answer),
        CoreTask("world_answers", "world knowledge", completion, 5, 0, questions, answer),
        CoreTask("world_cloze", "language understanding", completion, 0, 0, clozes),
        CoreTask("world_schema", "language understanding", "schema", 0, 50, schemas),
        CoreTask("world_korean", "language understanding", choice, 0, 25, chosen(asked, korean=True), "\n답: "),
        CoreTask("world_spelling", "symbolic problem solving", completion, 3, 0, spelled),
        CoreTask("world_sums", "symbolic problem solving", completion, 5, 0, sums),
    ]


SHOWN = "home trade pet food instrument river ware sight land hall".split()  # relations of the ten questions


def ten_questions(world: Any, dice: Any) -> list[dict]:
    """What one may ask a trained model to see that it has learned the world, and the word that a right answer has."""
    rows = []
    for name in SHOWN:
        fact = dice.pick([fact for fact in world.facts if fact.relation.name == name and fact.split == "test"])
        rows.append({"question": fact.asks[0], "answer": fact.value.name})
    return rows
