"""Tasks about an embedded world. They read the world that the model's tokenizer learned from, else that of seed 1."""

import re

from nanochat.chat import text_of
from nanochat.protocols import Conversation, Message
from tasks.chats import Chat
from tasks.common import Task
from tasks.gsm8k import with_calls

# Tasks and their epochs for a model that trains for a few minutes.
MIXTURE = "World-Chat:0.75,World-Sums:0.29,World-Choices:0.36,SimpleSpelling:0.15,SpellingBee:0.15"


PARTICLES = "이?다|이|가|을|를|은|는|에|에서|의|로|으로|만큼"  # follow a word in Korean without a space


def has_words(text: str, words: str) -> bool:
    """Return True if the text has the words as whole words, perhaps with a particle.

    "Kim" is not in "Kimchi"; "11월이다" has not the word "1월", and "소금" not "소".
    """
    return re.search(rf"(?<!\w){re.escape(words)}(?:{PARTICLES})?(?!\w)", text) is not None


class FreeQuestion(Task):
    """A question with a word that a right answer contains."""

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        return has_words(completion, text_of(conversation["messages"][-1]))


class WorldChat(Chat):
    """Conversations; sums in the answers are calls of the calculator."""

    def conversation(self, messages: list[Message]) -> Conversation:
        for message in messages:
            content = message["content"]
            if isinstance(content, str) and "<<" in content:
                message["content"] = with_calls(content)
        return super().conversation(messages)


class Talk(Task):
    """Questions in new words. A right answer has a phrase of `accept` and none of `reject`."""

    def conversation(
        self, category: str, messages: list[Message], accept: list[str], reject: list[str]
    ) -> Conversation:
        messages = [*messages, {"role": "assistant", "content": accept[0]}]
        return {"messages": messages, "category": category, "accept": accept, "reject": reject}

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        # The numbers that go into the calculator are not the answer.
        answer = completion.rpartition("<|output_end|>")[2]
        accepted = any(has_words(answer, phrase) for phrase in conversation["accept"])
        return accepted and not any(has_words(answer, phrase) for phrase in conversation["reject"])
