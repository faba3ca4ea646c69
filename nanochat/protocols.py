"""Conversations, and what the library uses of tasks: the folder tasks/ makes them, and nanochat/ does not import it."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from typing_extensions import NotRequired, TypedDict

from nanochat.log import Record

# ---- conversations: nanochat.chat checks and renders them ----


class Part(TypedDict):
    """A piece of a message."""

    type: str  # a key in chat.PARTS
    text: str


class Message(TypedDict):
    """What one side says."""

    role: str  # system, user or assistant
    content: str | list[Part]


class Conversation(TypedDict):
    """Messages, and whatever else a verdict on an answer needs; a track's task may add others."""

    messages: list[Message]
    category: NotRequired[str]  # of the problem; scores are reported by category too
    letters: NotRequired[str]  # multiple choice: those of the choices
    accept: NotRequired[list[str]]  # World-Talk: phrases of which a right answer has one
    reject: NotRequired[list[str]]  # World-Talk: phrases of which a right answer has none
    test: NotRequired[str]  # programs: the code of the tests
    entry_point: NotRequired[str]  # programs: the function that the tests call


# ---- their sources ----


@runtime_checkable
class Conversations(Protocol):
    """Conversations by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Conversation: ...


class Guessable(Protocol):
    """A data set, as far as a score needs it."""

    @property
    def baseline(self) -> float:
        """The score when guessing."""
        ...


@runtime_checkable
class Task(Conversations, Protocol):
    """A split of a data set, with a verdict on each answer; the last message of a conversation is the right one."""

    @property
    def kind(self) -> str:
        """`categorical`: answered with one of the conversation's "letters"; others are answered in writing."""
        ...

    @property
    def data(self) -> Guessable: ...

    def evaluate_all(self, answers: list[tuple[Conversation, str]]) -> list[bool]:
        """Return the verdicts on several (conversation, completion)."""
        ...

    def reward(self, conversation: Conversation, completion: str, /) -> float:
        """Return a completion's reward for reinforcement learning."""
        ...

    def hashes(self) -> dict[str, str]:
        """Return the files that the conversations come from, with their SHA-256, for the manifest."""
        ...


@runtime_checkable
class Mixture(Conversations, Protocol):
    """Several tasks' conversations in random order."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows by task, each epoch counted."""
        ...

    def origin(self) -> dict[str, Record]:
        """Return for each task the rows and files that it comes from, for the manifest."""
        ...


class OpenTasks(Protocol):
    """Opens the test splits of tasks: `tasks.open_tasks`."""

    def __call__(self, names: str, unsafe_exec: bool = False, tokenizer: str = "default") -> Mapping[str, Task]:
        """Return tasks by name. names: separated by |, empty for those of the tokenizer's data."""
        ...
