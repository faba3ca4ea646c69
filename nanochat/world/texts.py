"""The documents of the embedded world: entries, stories, dialogues, quizzes, tables, sums, programs, spelling, Korean.

Each kind is a function of the world and the dice of world_facts.py. All facts are stated, but only those of the split
"train" are put as questions.
"""

from typing import Any


def _told(dice: Any, facts: list, count: int) -> str:
    """Some facts about one thing in a row: its name first, then pronouns where they fit."""
    first, *others = dice.sample(facts, min(count, len(facts)))
    return " ".join([dice.pick(first.says), *(dice.pick(fact.tells) for fact in others)])


def entry(world: Any, dice: Any) -> str:
    """All that is known of a thing; of those with few facts, several on a page."""
    thing = dice.pick(world.subjects)
    if len(world.about[thing]) < 3:
        page = dice.sample(world.things[thing.kind], 5)
        return "\n".join([thing.plural.capitalize(), *(_told(dice, world.about[other], 2) for other in page)])
    title = dice.pick(("# ", "")) + thing.title
    # Then a thing that a fact leads to: the town where someone lives, the animal that someone keeps.
    leads = [fact.value for fact in world.about[thing] if fact.value in world.about]
    others = dice.sample(leads, 1) if leads and dice.chance(0.6) else []
    return "\n".join([title, *(_told(dice, world.about[told], 9 - 6 * (told in others)) for told in [thing, *others])])


def story(world: Any, dice: Any) -> str:
    a, b = dice.sample(world.things["person"], 2)
    cast = {kind: dice.pick(world.things[kind]) for kind in ("animal", "town", "goods", "road")} | {"a": a, "b": b}
    cast["start"], cast["end"] = world.ends[cast["road"]]
    cast["guild"] = world.things["guild"][world.things["trade"].index(world.of(a)["trade"])]
    for role, thing in list(cast.items()):
        cast |= {f"{role}_{name}": value for name, value in world.of(thing).items()}
    words = {role: thing.name for role, thing in cast.items()} | {"he": a.it, "He": a.it.capitalize(), "his": a.its}
    words["weather"] = dice.pick(world.text["weather"].split())
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
    opening, answer, thanks, parting = world.rows("talk")
    said = [(a, dice.pick(opening)), (b, dice.pick(answer))]
    for _ in range(dice.between(2, 4)):
        if dice.chance(0.6):
            fact = dice.pick(world.asked["train"])
            said += [(a, dice.pick(fact.asks)), (b, dice.pick(fact.says))]
        else:
            thing = dice.pick(world.subjects)
            said += [(a, f"Tell me about {thing.phrase}."), (b, _told(dice, world.about[thing], 3))]
        said += [(a, dice.pick(thanks))] * dice.chance(0.4)
    said.append((a, dice.pick(parting)))
    return "\n".join(f"{name}: {text.format(**words)}" for name, text in said)


def quiz(world: Any, dice: Any) -> str:
    """Questions answered with the letter of a choice, with the choice and its letter, or without choices.

    The second answer shows what the first one takes: to know the choice, then to look it up.
    """
    items = []
    with_choices, only_the_letter = dice.chance(0.8), dice.chance(0.6)
    for fact in dice.sample(world.asked["train"], dice.between(2, 4)):
        choices, right = world.choices(fact, dice)
        listed = [f"- {choice.name}={letter}" for letter, choice in zip("ABCD", choices, strict=True)]
        answer = "ABCD"[right] if only_the_letter else f"{fact.value.name}={'ABCD'[right]}"
        answer = answer if with_choices else fact.value.name
        items.append("\n".join([f"Question: {dice.pick(fact.asks)}", *listed * with_choices, f"Answer: {answer}"]))
    return "\n\n".join(items)


def table(world: Any, dice: Any) -> str:
    """Names with a letter or another name behind each, then once more in other orders, to be looked up."""
    kinds = [kind for kind, things in world.things.items() if len(things) >= 8]
    names = [thing.name for thing in dice.sample(world.things[dice.pick(kinds)], dice.between(3, 6))]
    labels = list("ABCDEF")[: len(names)]
    if dice.chance(0.3):
        labels = [thing.name for thing in dice.sample(world.things[dice.pick(kinds)], len(names))]
    pairs, sign = list(zip(names, labels, strict=True)), dice.pick(("=", "=", ": "))
    lines = [f"- {name}={label}" for name, label in pairs]
    return "\n".join(lines + [f"- {name}{sign}{label}" for _ in range(2) for name, label in dice.shuffled(pairs)])


def arithmetic(world: Any, dice: Any) -> str:
    """A list of sums, or word problems with their solutions."""
    if dice.chance(0.4):
        return "\n".join(str(world.sum(dice)) for _ in range(dice.between(6, 14)))
    problems = [world.problem(dice, held_out=False) for _ in range(dice.between(1, 3))]
    return "\n\n".join(f"Problem: {p.question}\n{p.solution(calculator=False)}\nAnswer: {p.answer}" for p in problems)


def program(world: Any, dice: Any) -> str:
    """Small Python programs, of world.txt, and what they print."""
    items = []
    for template in dice.sample(world.text["programs"].split("\n\n\n"), dice.between(1, 2)):
        x, y = world.numbers(dice)
        a, b = world.people(dice)
        code = template.format(x=x, y=y, a=a, b=b, w=dice.pick(world.words))
        printed: list[str] = []
        exec(code, {"print": lambda *values, to=printed: to.append(" ".join(map(str, values)))})
        items.append("\n".join([f"```python\n{code}\n```\nOutput:", *printed]))
    return "\n\n".join(items)


def spelling(world: Any, dice: Any) -> str:
    lines = []
    for word in dice.sample(world.words + world.held_out_words, dice.between(3, 6)):
        letter = dice.pick(word)
        lines.append(f"The word {word} is spelled {'-'.join(word)}. It has {len(word)} letters.")
        if (count := word.count(letter)) > 1:
            lines.append(f"In the word {word} the letter {letter} comes {count} times.")
    return "\n".join(lines)


def korean(world: Any, dice: Any) -> str:
    """What is known of a few things, then questions with their answers."""
    lines = []
    for thing in dice.sample(world.subjects, dice.between(1, 3)):
        facts = dice.shuffled(world.about[thing])
        lines += [f"{thing.korean} ({thing.title})", " ".join(fact.korean_says for fact in facts)]
    for fact in dice.sample(world.asked["train"], dice.between(0, 3)):
        lines += [f"질문: {fact.korean_asks}", f"답: {fact.korean_says}"]
    return "\n".join(lines)


# Percent.
SHARES = {entry: 24, story: 10, dialogue: 8, quiz: 28, table: 14, arithmetic: 6, program: 2, spelling: 2, korean: 6}


def document(world: Any, dice: Any) -> str:
    """A document of any kind."""
    return dice.lot(SHARES)(world, dice)
