"""Documents about the embedded world: entries, stories, dialogues, quizzes, tables, sums, programs, spelling, Korean.

Each kind is a function (world) -> text. Documents state all facts, but ask only about the split "train".
"""

import io
from contextlib import redirect_stdout

from nanochat.world.facts import Thing, World, capitalized
from nanochat.world.sums import plain_sum, program_numbers, word_problem


def paragraph(world: World, thing: Thing, most: int) -> str:
    """State up to `most` facts about a thing, with pronouns after the first."""
    facts = world.about[thing]
    first, *others = world.sample(facts, min(most, len(facts)))
    # "Kara lives in Badaton. She keeps a genu. Her coat is grey."
    sentences = [world.pick(first.statements)]
    sentences += [world.pick(fact.pronoun_statements) for fact in others]
    return " ".join(sentences)


def entry(world: World) -> str:
    """All facts about a thing below its name, as in an encyclopedia."""
    thing = world.pick(world.subjects)
    facts = world.about[thing]
    if len(facts) < 3:
        # Five things on one page: "Prices", "The price of a knife is 32 coins.", "One pays 10 coins for a mirror.", …
        heading = thing.plural.capitalize()
        shown = dict.fromkeys(world.sample(world.things[thing.kind], 5), 2)  # thing -> largest number of facts
    else:
        heading = world.pick(("# ", "")) + capitalized(thing.phrase)
        shown = {thing: 9}
        # A related thing may follow: the town where a person lives, the animal that a person keeps.
        related = [fact.value for fact in facts if fact.value in world.about]
        if related and world.chance(0.6):
            shown[world.pick(related)] = 3
    return "\n".join([heading, *(paragraph(world, one, most) for one, most in shown.items())])


def story(world: World) -> str:
    """A plot from world.txt with facts about the people and things in it."""
    # "One windy morning Hopam woke up and her genu was gone. Hopam is a hunter. She wears a grey coat. …"
    a, b = world.two_people()
    # Things by role: two people, a town, …, and values such as `a_pet`.
    cast = {"a": a, "b": b}
    for kind in ("animal", "town", "goods", "road"):
        cast[kind] = world.pick(world.things[kind])
    cast["start"], cast["end"] = world.road_ends[cast["road"].name]
    # Guilds are listed in the order of trades.
    [trade] = [fact.value for fact in world.about[a] if fact.relation == "trade"]
    cast["guild"] = world.things["guild"][world.things["trade"].index(trade)]
    # "goods_price" is the price of the goods, "a_home" the town where a lives. Plots name these in braces.
    for role, thing in list(cast.items()):
        cast |= {f"{role}_{fact.relation}": fact.value for fact in world.about[thing]}
    words = cast | {"weather": world.wording("weather")}
    text = ""
    for wordings in world.pick(world.topics("plots")):
        if wordings[0].startswith("<"):
            # <a> stands for some facts about {a}.
            part = paragraph(world, cast[wordings[0].strip("<>")], world.between(2, 4))
        else:
            # "{a.he} called in every street." or "{a.he} looked under the bed."
            part = capitalized(world.pick(wordings).format_map(words))
        text += (world.pick("  \n") if text else "") + part
    return text


def dialogue(world: World) -> str:
    """Two people talk: questions with answers, and requests for facts about a thing."""
    a, b = world.two_people()
    weather = world.wording("weather")
    # "Gida: What a stormy day, Sati!", "Sati: Hello, Gida! What do you want to know?"
    lines = [world.wording("opening"), world.wording("opening answer")]
    for _ in range(world.between(2, 4)):
        if world.chance(0.6):
            # "Gida: Where does Sati live?", "Sati: Sati has a house in Badaton."
            fact, question = world.pick(world.questions["train"])
            statement = world.pick(fact.statements)
        else:
            # "Gida: Tell me about the river Tugum.", "Sati: The river Tugum flows into Lake Pujal. …"
            thing = world.pick(world.subjects)
            question = f"Tell me about {thing.phrase}."
            statement = paragraph(world, thing, 3)
        lines += ["{a}: " + question, "{b}: " + statement]
        # Drawn even if nobody thanks: every draw decides the bytes of a seed.
        thanks = world.wording("thanks")
        if world.chance(0.4):
            lines.append(thanks)
    lines.append(world.wording("farewell"))
    return "\n".join(lines).format(a=a, b=b, weather=weather)


def quiz(world: World) -> str:
    """Questions with choices and a letter, with choices and `choice=letter`, or without choices.

    The second form shows the two steps behind the first: recall the value, then find its letter.
    """
    with_choices = world.chance(0.8)
    letter_only = world.chance(0.6)
    items = []
    for _ in range(world.between(2, 4)):
        fact, question = world.pick(world.questions["train"])
        choices, right = world.choices(fact)
        lines = [f"Question: {question}"]
        answer = fact.value
        if with_choices:
            # "Badaton=A", "Diditon=B", …
            labelled = [f"{choice}={letter}" for choice, letter in zip(choices, "ABCD", strict=True)]
            lines += [f"- {choice}" for choice in labelled]
            # "Answer: B" or "Answer: Diditon=B"
            answer = "ABCD"[right] if letter_only else labelled[right]
        items.append("\n".join([*lines, f"Answer: {answer}"]))
    return "\n\n".join(items)


def lookup_table(world: World) -> str:
    """Names with a letter or another name behind each, then the same pairs twice in other orders.

    To predict the repeated pairs, a model must copy from its context.
    """
    # Kinds with enough names for a table.
    kinds = [things for things in world.things.values() if len(things) >= 8]
    names = world.sample(world.pick(kinds), world.between(3, 6))
    labels = "ABCDEF"[: len(names)]
    # A third of the tables pairs names with names.
    if world.chance(0.3):
        labels = world.sample(world.pick(kinds), len(names))
    pairs = list(zip(names, labels, strict=True))
    sign = world.pick(("=", "=", ": "))
    # "- mirror=A", "- hat=B", "- bucket=C"
    lines = [f"- {name}={label}" for name, label in pairs]
    # "- bucket: C", "- mirror: A", "- hat: B"
    lines += [f"- {name}{sign}{label}" for name, label in world.shuffled(pairs) + world.shuffled(pairs)]
    return "\n".join(lines)


def arithmetic(world: World) -> str:
    """Six to fourteen sums, or one to three word problems with solutions."""
    if world.chance(0.4):
        # "49 / 7 = 7", "5 * 7 = 35", …
        return "\n".join(plain_sum(world) for _ in range(world.between(6, 14)))
    problems = [word_problem(world, held_out=False) for _ in range(world.between(1, 3))]
    # "Problem: Kara has 3 apples. …", "Now Kara has 3 + 4 = 7 apples.", "Answer: 7"
    return "\n\n".join("Problem: {}\n{}\nAnswer: {}".format(*problem) for problem in problems)


def program(world: World) -> str:
    """One or two small Python programs from world.txt, each followed by its output."""
    templates = world.text["programs"].split("\n\n\n")  # two empty lines between programs
    items = []
    for template in world.sample(templates, world.between(1, 2)):
        x, y = program_numbers(world)
        a, b = world.two_people()
        # "x = 3", "y = 4", "print(x + y)"
        code = template.format(x=x, y=y, a=a, b=b, w=world.pick(world.words))
        output = io.StringIO()
        with redirect_stdout(output):
            exec(code, {})  # our own templates, so no sandbox is needed
        items.append(f"```python\n{code}\n```\nOutput:\n{output.getvalue().strip()}")
    return "\n\n".join(items)


def spelling(world: World) -> str:
    """Words letter by letter; some with a letter count."""
    lines = []
    for word in world.sample(world.words + world.held_out_words, world.between(3, 6)):
        letter = world.pick(word)  # counted below if repeated
        count = word.count(letter)
        # "The word pepper is spelled p-e-p-p-e-r. It has 6 letters."
        lines.append(f"The word {word} is spelled {'-'.join(word)}. It has {len(word)} letters.")
        if count > 1:
            # "In the word pepper the letter p comes 3 times."
            lines.append(f"In the word {word} the letter {letter} comes {count} times.")
    return "\n".join(lines)


def korean(world: World) -> str:
    """All facts about one to three things in Korean, then questions with answers."""
    lines = []
    for thing in world.sample(world.subjects, world.between(1, 3)):
        # "시만강 (The river Siman)", then its statements
        facts = world.shuffled(world.about[thing])
        statements = " ".join(fact.korean_statement for fact in facts)
        lines += [f"{thing.korean} ({capitalized(thing.phrase)})", statements]
    for fact in world.sample(world.asked["train"], world.between(0, 3)):
        lines += [f"질문: {fact.korean_question}", f"답: {fact.korean_statement}"]
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


def document(world: World) -> str:
    """Return a document of a random kind."""
    return world.weighted(DOCUMENT_KINDS)(world)
