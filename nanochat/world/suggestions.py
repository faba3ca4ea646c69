"""What to say to a model of an embedded world: a person cannot know the names of an invented land.

A base model gets these into its manifest, and the stages after it hand them on (nanochat/start.py).
"""

from nanochat.world.chats import cloze
from nanochat.world.facts import Fact, World
from nanochat.world.sums import sum_to_100


def suggestions(world: World) -> dict[str, list[str]]:
    """Return short questions for a model that chats, and beginnings of sentences for a base model to continue.

    The facts are of the validation split: documents state them, and no conversation for training asks for them.
    """
    world.restart("suggestions")
    people = _facts(world, "person", 3)
    [place] = _facts(world, "town", 1)
    someone, someone_else, _ = (fact.questions[0] for fact in people)
    question, _ = sum_to_100(world, "+", ["How much is {x} + {y}?"], held_out=False)
    word = world.pick(world.words)
    return {
        # The first three show the kinds: a fact, a sum, and the model itself.
        "questions": [
            someone,
            question,
            "What are you?",
            place.questions[0],
            f"How do you spell {word}?",
            someone_else,
        ],
        "beginnings": [cloze(world, fact)["context"] for fact in people],
    }


def _facts(world: World, kind: str, count: int) -> list[Fact]:
    """Return facts about things of a kind, of different relations as far as there are that many."""
    known = [fact for fact in world.asked["validation"] if fact.subject.kind == kind]
    by_relation = {fact.relation: fact for fact in world.shuffled(known)}
    return world.sample(list(by_relation.values()), count)
