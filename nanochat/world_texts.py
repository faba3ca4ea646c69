"""The documents of the embedded world: entries, stories, dialogues, quizzes, sums, programs, spelling, Korean.

Each kind is a function of the world and the dice of world_facts.py. All facts are stated, but only those of the split
"train" are put as questions.
"""

from collections.abc import Callable
from typing import Any

# A program about two numbers, two names and a word, and what it prints.
PROGRAMS: tuple[tuple[str, Callable[..., list]], ...] = (
    ("x = {x}\ny = {y}\nprint(x + y)", lambda x, y, a, b, w: [x + y]),
    ("price = {x}\ncount = {y}\nprint(price * count)", lambda x, y, a, b, w: [x * y]),
    ("def add(a, b):\n    return a + b\n\nprint(add({x}, {y}))", lambda x, y, a, b, w: [x + y]),
    ("def twice(number):\n    return 2 * number\n\nprint(twice({x}))", lambda x, y, a, b, w: [2 * x]),
    ("if {x} > {y}:\n    print({x})\nelse:\n    print({y})", lambda x, y, a, b, w: [max(x, y)]),
    ('for name in ["{a}", "{b}"]:\n    print("Hello", name)', lambda x, y, a, b, w: [f"Hello {a}", f"Hello {b}"]),
    ('word = "{w}"\nprint(len(word))\nprint(word.upper())', lambda x, y, a, b, w: [len(w), w.upper()]),
    ('for letter in "{w}":\n    print(letter)', lambda x, y, a, b, w: list(w)),
    ("for number in range(3):\n    print(number + {x})", lambda x, y, a, b, w: [x, x + 1, x + 2]),
    ('coins = {{"{a}": {x}, "{b}": {y}}}\nprint(coins["{a}"])', lambda x, y, a, b, w: [x]),
    ('coins = {{"{a}": {x}, "{b}": {y}}}\nprint(sum(coins.values()))', lambda x, y, a, b, w: [x + y]),
)

TITLES = {"goods": "Prices", "road": "Roads", "guild": "Guilds"}  # of a page about several things of a kind


def _told(dice: Any, facts: list, count: int) -> str:
    """Some facts about one thing in a row: its name first, then pronouns where they fit."""
    first, *others = dice.sample(facts, min(count, len(facts)))
    return " ".join([dice.pick(first.says), *(dice.pick(fact.tells) for fact in others)])


def _title(thing: Any) -> str:
    return thing.phrase[0].upper() + thing.phrase[1:]


def entry(world: Any, dice: Any) -> str:
    """All that is known of a thing; of those with few facts, several on a page."""
    thing = dice.pick(world.subjects)
    if thing.kind in TITLES:
        page = dice.sample(world.things[thing.kind], 5)
        return "\n".join([TITLES[thing.kind], *(_told(dice, world.about[other], 2) for other in page)])
    title = dice.pick(("# ", "")) + _title(thing)
    # Then a thing that a fact leads to: the town where someone lives, the animal that someone keeps.
    leads = [fact.value for fact in world.about[thing] if fact.value in world.about]
    others = dice.sample(leads, 1) if leads and dice.chance(0.6) else []
    return "\n".join([title, *(_told(dice, world.about[told], 9 - 6 * (told in others)) for told in [thing, *others])])


def _cast(world: Any, dice: Any) -> dict[str, Any]:
    """Who and what a story is about, by the names that the plots use."""
    a, b = dice.sample(world.things["person"], 2)
    animal, town, goods, road = (dice.pick(world.things[kind]) for kind in ("animal", "town", "goods", "road"))
    own, other = world.of(a), world.of(b)
    guild = world.things["guild"][world.things["trade"].index(own["trade"])]
    start, end = world.ends[road]
    cast = {**own, "a": a, "b": b, "b_food": other["food"], "b_home": other["home"], "road": road, "start": start}
    cast |= {"end": end, "town": town, "month": world.of(town)["feast"], "animal": animal, "guild": guild}
    cast |= {"lands": world.of(animal)["land"], "diet": world.of(animal)["diet"], "hall": world.of(guild)["hall"]}
    return cast | {"goods": goods, "price": world.of(goods)["price"]}


def story(world: Any, dice: Any) -> str:
    cast = _cast(world, dice)
    words = {name: thing.name for name, thing in cast.items()}
    words |= {"weather": dice.pick(world.text["weather"].split())}
    words |= {"he": cast["a"].it, "He": cast["a"].it.capitalize(), "his": cast["a"].its}
    text = ""
    for line in dice.pick(world.text["plots"].split("\n\n")).splitlines():
        if line.startswith("<"):
            part = _told(dice, world.about[cast[line.strip("<>")]], dice.between(2, 4))
        else:
            part = dice.pick(line.split(" | ")).format(**words)
        text += (dice.pick((" ", " ", "\n")) if text else "") + part
    return text


def dialogue(world: Any, dice: Any) -> str:
    """Two people talk about the world: questions with an answer, and things to be told about."""
    a, b = world.people(dice)
    words = {"a": a, "b": b, "weather": dice.pick(world.text["weather"].split())}
    opening, answer, thanks, parting = world.text["talk"].splitlines()

    def line(speaker: str, wordings: str) -> str:
        return f"{speaker}: " + dice.pick(wordings.split(" | ")).format(**words)

    lines = [line(a, opening), line(b, answer)]
    for _ in range(dice.between(2, 4)):
        if dice.chance(0.6):
            fact = dice.pick(world.asked)
            lines += [f"{a}: {dice.pick(fact.asks)}", f"{b}: {dice.pick(fact.says)}"]
        else:
            thing = dice.pick(world.subjects)
            lines += [f"{a}: Tell me about {thing.phrase}.", f"{b}: {_told(dice, world.about[thing], 3)}"]
        lines += [line(a, thanks)] * dice.chance(0.4)
    return "\n".join([*lines, line(a, parting)])


def quiz(world: Any, dice: Any) -> str:
    """Questions with choices, each with its letter behind it, or with a short answer."""
    items = []
    with_choices = dice.chance(0.7)
    for fact in dice.sample(world.asked, dice.between(2, 4)):
        choices, right = world.choices(fact, dice)
        listed = [f"- {choice.name}={letter}" for letter, choice in zip("ABCD", choices, strict=True)]
        answer = "ABCD"[right] if with_choices else fact.value.name
        items.append("\n".join([f"Question: {dice.pick(fact.asks)}", *listed * with_choices, f"Answer: {answer}"]))
    return "\n\n".join(items)


def arithmetic(world: Any, dice: Any) -> str:
    """A list of sums, or word problems with their solutions."""
    if dice.chance(0.4):
        return "\n".join(str(world.sum(dice)) for _ in range(dice.between(6, 14)))
    items = []
    for _ in range(dice.between(1, 3)):
        problem = world.problem(dice, held_out=False)
        items.append(f"Problem: {problem.question}\n{problem.solution(calculator=False)}\nAnswer: {problem.answer}")
    return "\n\n".join(items)


def program(world: Any, dice: Any) -> str:
    """Small Python programs and what they print."""
    items = []
    for text, prints in dice.sample(PROGRAMS, dice.between(1, 2)):
        x, y = world.numbers(dice)
        a, b = world.people(dice)
        values = {"x": x, "y": y, "a": a, "b": b, "w": dice.pick(world.words)}
        output = "\n".join(map(str, prints(*values.values())))
        items.append(f"```python\n{text.format(**values)}\n```\nOutput:\n{output}")
    return "\n\n".join(items)


def spelling(world: Any, dice: Any) -> str:
    lines = []
    for word in dice.sample(world.words + world.held_out_words, dice.between(3, 6)):
        letter = dice.pick(word)
        lines += [
            f"The word {word} is spelled {'-'.join(word)}. It has {len(word)} letters.",
            f"In the word {word} the letter {letter} comes {word.count(letter)} times." * (word.count(letter) > 1),
        ]
    return "\n".join(filter(None, lines))


def korean(world: Any, dice: Any) -> str:
    """What is known of a few things, then questions with their answers."""
    lines = []
    for thing in dice.sample(world.subjects, dice.between(1, 3)):
        facts = dice.shuffled(world.about[thing])
        lines += [f"{thing.korean} ({_title(thing)})", " ".join(fact.korean_says for fact in facts)]
    for fact in dice.sample(world.asked, dice.between(0, 3)):
        lines += [f"질문: {fact.korean_asks}", f"답: {fact.korean_says}"]
    return "\n".join(lines)


SHARES = {entry: 26, story: 20, dialogue: 12, quiz: 18, arithmetic: 8, program: 5, spelling: 3, korean: 8}  # percent


def document(world: Any, dice: Any) -> str:
    """A document of any kind."""
    return dice.lot(SHARES)(world, dice)
