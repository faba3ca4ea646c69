"""Documents about the embedded world: entries, stories, dialogues, quizzes, tables, sums, programs, spelling, Korean.

Each kind is a function (world, dice) -> text. Documents state all facts, but ask only about the split "train".
"""

from nanochat.world.facts import Dice, Fact, Thing, World
from nanochat.world.sums import plain_sum, program_numbers, word_problem

LETTERS = "ABCD"


def paragraph(dice: Dice, facts: list[Fact], most: int) -> str:
    """State up to `most` facts about one thing, with pronouns after the first."""
    first, *others = dice.sample(facts, min(most, len(facts)))
    # "Kara lives in Badaton. She keeps a genu. Her coat is grey."
    sentences = [dice.pick(first.statements)]
    for fact in others:
        sentences.append(dice.pick(fact.pronoun_statements))
    return " ".join(sentences)


def entry(world: World, dice: Dice) -> str:
    """All facts about a thing below its name, as in an encyclopedia."""
    thing = dice.pick(world.subjects)
    facts = world.about[thing]
    if len(facts) < 3:
        return short_entries(world, dice, thing)
    lines = [dice.pick(("# ", "")) + thing.title]
    # A related thing may follow: the town where a person lives, the animal that a person keeps.
    related = [fact.value for fact in facts if fact.value in world.about]
    has_related = bool(related) and dice.chance(0.6)
    other = dice.pick(related) if has_related else None
    lines.append(paragraph(dice, facts, 9))
    if other:
        lines.append(paragraph(dice, world.about[other], 3))
    return "\n".join(lines)


def short_entries(world: World, dice: Dice, example: Thing) -> str:
    """Five things with few facts on one page."""
    # "Prices", "The price of a knife is 32 coins.", "One pays 10 coins for a mirror.", …
    lines = [example.plural.capitalize()]
    for thing in dice.sample(world.things[example.kind], 5):
        lines.append(paragraph(dice, world.about[thing], 2))
    return "\n".join(lines)


def story(world: World, dice: Dice) -> str:
    """A plot from world.txt with facts about the people and things in it."""
    # "One windy morning Hopam woke up and her genu was gone. Hopam is a hunter. She wears a grey coat. …"
    cast = draw_cast(world, dice)
    words = {role: thing.name for role, thing in cast.items()}
    hero = cast["a"]
    words["he"] = hero.pronoun
    words["He"] = hero.pronoun.capitalize()
    words["his"] = hero.possessive
    words["weather"] = dice.pick(world.text["weather"].split())
    plot = dice.pick(world.text["plots"].split("\n\n"))  # an empty line between plots
    text = ""
    for line in plot.splitlines():
        if line.startswith("<"):
            # <a> stands for some facts about {a}.
            thing = cast[line.strip("<>")]
            part = paragraph(dice, world.about[thing], dice.between(2, 4))
        else:
            # One of several wordings: "{He} called in every street." | "{He} looked under the bed."
            part = dice.pick(line.split(" | ")).format_map(words)
        separator = dice.pick((" ", " ", "\n")) if text else ""
        text += separator + part
    return text


def draw_cast(world: World, dice: Dice) -> dict[str, Thing]:
    """Return the things of a story by role: two people a and b, a town, …, and values such as `a_pet`."""
    a, b = dice.sample(world.things["person"], 2)
    cast = {}
    for kind in (
        "animal",
        "town",
        "goods",
        "road",
    ):
        cast[kind] = dice.pick(world.things[kind])
    cast["a"] = a
    cast["b"] = b
    cast["start"], cast["end"] = world.road_ends[cast["road"]]
    # Guilds are listed in the order of trades.
    trade = world.values_of(a)["trade"]
    cast["guild"] = world.things["guild"][world.things["trade"].index(trade)]
    for role, thing in list(cast.items()):
        # "goods_price" is the price of the goods, "a_home" the town where a lives.
        for relation, value in world.values_of(thing).items():
            cast[f"{role}_{relation}"] = value  # plots name these in braces
    return cast


def dialogue(world: World, dice: Dice) -> str:
    """Two people talk: questions with answers, and requests for facts about a thing."""
    a, b = world.two_people(dice)
    weather = dice.pick(world.text["weather"].split())
    words = {
        "a": a,
        "b": b,
        "weather": weather,
    }
    opening, answer, thanks, parting = world.rows("talk")
    # "Gida: What a stormy day, Sati!", "Sati: Hello, Gida! What do you want to know?"
    turns = [
        (a, dice.pick(opening)),
        (b, dice.pick(answer)),
    ]
    for _ in range(dice.between(2, 4)):
        if dice.chance(0.6):
            # "Gida: Where does Sati live?", "Sati: Sati has a house in Badaton."
            fact = dice.pick(world.asked["train"])
            turns.append((a, dice.pick(fact.questions)))
            turns.append((b, dice.pick(fact.statements)))
        else:
            # "Gida: Tell me about the river Tugum.", "Sati: The river Tugum flows into Lake Pujal. …"
            thing = dice.pick(world.subjects)
            turns.append((a, f"Tell me about {thing.phrase}."))
            turns.append((b, paragraph(dice, world.about[thing], 3)))
        # Drawn even if nobody thanks: every draw decides the bytes of a seed.
        phrase = dice.pick(thanks)
        if dice.chance(0.4):
            turns.append((a, phrase))
    turns.append((a, dice.pick(parting)))
    return "\n".join(f"{name}: {text.format_map(words)}" for name, text in turns)


def quiz(world: World, dice: Dice) -> str:
    """Questions with choices and a letter, with choices and `choice=letter`, or without choices.

    The second form shows the two steps behind the first: recall the value, then find its letter.
    """
    with_choices = dice.chance(0.8)
    letter_only = dice.chance(0.6)
    items = []
    for fact in dice.sample(world.asked["train"], dice.between(2, 4)):
        choices, right = world.choices(fact, dice)
        lines = [f"Question: {dice.pick(fact.questions)}"]
        answer = fact.value.name
        if with_choices:
            # "- Badaton=A", "- Diditon=B", …
            for letter, choice in zip(LETTERS, choices, strict=True):
                lines.append(f"- {choice.name}={letter}")
            # "Answer: B" or "Answer: Diditon=B"
            letter = LETTERS[right]
            answer = letter if letter_only else f"{answer}={letter}"
        lines.append(f"Answer: {answer}")
        items.append("\n".join(lines))
    return "\n\n".join(items)


def lookup_table(world: World, dice: Dice) -> str:
    """Names with a letter or another name behind each, then the same pairs twice in other orders.

    To predict the repeated pairs, a model must copy from its context.
    """
    # Kinds with enough names for a table.
    kinds = [kind for kind, things in world.things.items() if len(things) >= 8]
    things = world.things[dice.pick(kinds)]
    names = [thing.name for thing in dice.sample(things, dice.between(3, 6))]
    labels = list("ABCDEF"[: len(names)])
    # A third of the tables pairs names with names.
    if dice.chance(0.3):
        things = world.things[dice.pick(kinds)]
        labels = [thing.name for thing in dice.sample(things, len(names))]
    pairs = list(zip(names, labels, strict=True))
    sign = dice.pick(("=", "=", ": "))
    # "- mirror=A", "- hat=B", "- bucket=C"
    lines = [f"- {name}={label}" for name, label in pairs]
    for _ in range(2):
        # "- bucket: C", "- mirror: A", "- hat: B"
        for name, label in dice.shuffled(pairs):
            lines.append(f"- {name}{sign}{label}")
    return "\n".join(lines)


def arithmetic(world: World, dice: Dice) -> str:
    """Six to fourteen sums, or one to three word problems with solutions."""
    if dice.chance(0.4):
        # "49 / 7 = 7", "5 * 7 = 35", …
        sums = [plain_sum(world, dice) for _ in range(dice.between(6, 14))]
        return "\n".join(map(str, sums))
    items = []
    for _ in range(dice.between(1, 3)):
        # "Problem: Kara has 3 apples. …", "Now Kara has 3 + 4 = 7 apples.", "Answer: 7"
        problem = word_problem(world, dice, held_out=False)
        solution = problem.solution(calculator=False)
        items.append(f"Problem: {problem.question}\n{solution}\nAnswer: {problem.answer}")
    return "\n\n".join(items)


def program(world: World, dice: Dice) -> str:
    """One or two small Python programs from world.txt, each followed by its output."""
    templates = world.text["programs"].split("\n\n\n")  # two empty lines between programs
    items = []
    for template in dice.sample(templates, dice.between(1, 2)):
        x, y = program_numbers(world, dice)
        a, b = world.two_people(dice)
        word = dice.pick(world.words)
        # "x = 3", "y = 4", "print(x + y)"
        code = template.format(
            x=x,
            y=y,
            a=a,
            b=b,
            w=word,
        )
        output = "\n".join(printed_lines(code))
        items.append(f"```python\n{code}\n```\nOutput:\n{output}")
    return "\n\n".join(items)


def printed_lines(code: str) -> list[str]:
    """Run a program and return the lines that it prints."""
    lines: list[str] = []

    def collect(*values: str | int) -> None:
        lines.append(" ".join(map(str, values)))

    # Our own templates from world.txt, so no sandbox is needed.
    exec(code, {"print": collect})
    return lines


def spelling(world: World, dice: Dice) -> str:
    """Words letter by letter; some with a letter count."""
    lines = []
    for word in dice.sample(world.words + world.held_out_words, dice.between(3, 6)):
        letter = dice.pick(word)  # counted below if repeated
        count = word.count(letter)
        spelled = "-".join(word)
        # "The word pepper is spelled p-e-p-p-e-r. It has 6 letters."
        lines.append(f"The word {word} is spelled {spelled}. It has {len(word)} letters.")
        if count > 1:
            # "In the word pepper the letter p comes 3 times."
            lines.append(f"In the word {word} the letter {letter} comes {count} times.")
    return "\n".join(lines)


def korean(world: World, dice: Dice) -> str:
    """All facts about one to three things in Korean, then questions with answers."""
    lines = []
    for thing in dice.sample(world.subjects, dice.between(1, 3)):
        # "시만강 (The river Siman)", then its statements
        facts = dice.shuffled(world.about[thing])
        lines.append(f"{thing.korean} ({thing.title})")
        lines.append(" ".join(fact.korean_statement for fact in facts))
    for fact in dice.sample(world.asked["train"], dice.between(0, 3)):
        lines.append(f"질문: {fact.korean_question}")
        lines.append(f"답: {fact.korean_statement}")
    return "\n".join(lines)


# Percent of all documents.
DOCUMENT_KINDS = {
    entry: 24,
    story: 10,
    dialogue: 8,
    quiz: 28,
    lookup_table: 14,
    arithmetic: 6,
    program: 2,
    spelling: 2,
    korean: 6,
}


def document(world: World, dice: Dice) -> str:
    """Return a document of a random kind."""
    kind = dice.weighted(DOCUMENT_KINDS)
    return kind(world, dice)
