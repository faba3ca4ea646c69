"""Conversations, and what the library uses of tasks and of tokenizers that other folders make.

Tasks are made in tasks/, which nanochat/ does not import; the tokenizers of public models in a track.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from typing_extensions import NotRequired, TypedDict

from nanochat.log import Record

if TYPE_CHECKING:
    import numpy as np

# ---- conversations: nanochat.chat checks and renders them ----


class Part(TypedDict):
    """A piece of a message."""

    type: str  # a key in chat.PARTS
    text: str


class Message(TypedDict):
    """What one side says."""

    role: str  # system, user, assistant or tool
    content: str | list[Part]
    tool_calls: NotRequired[list[Record]]  # of the assistant; the content may be missing then
    weight: NotRequired[int]  # 0: not to be learned, as files for OpenAI say it
    train: NotRequired[bool]  # False: not to be learned, as files for axolotl say it


class Conversation(TypedDict):
    """Messages, and whatever else a verdict on an answer needs; a track's task may add others."""

    messages: list[Message]
    tools: NotRequired[list[Record]]  # that the assistant may call, for the chat template of a public model
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


# ---- tokenizers ----


class Core(Protocol):
    """What encodes and decodes, as `rustbpe.Tokenizer` does: see rustbpe/rustbpe.pyi."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> dict[str, int]: ...

    def encode(self, text: str) -> "np.ndarray": ...

    def encode_batch(
        self, texts: Sequence[str], prepend: int | None = None, threads: int = 0
    ) -> "tuple[np.ndarray, np.ndarray]": ...

    def encode_arrow(
        self, array: Any, prepend: int | None = None, threads: int = 0
    ) -> "tuple[np.ndarray, np.ndarray]": ...

    def decode(self, ids: "Sequence[int] | np.ndarray") -> str: ...

    def token_bytes(self, id: int) -> bytes: ...

    def token_lengths(self) -> "np.ndarray": ...


class CallForm(NamedTuple):
    """How a model writes a call of a tool: JSON between two marks."""

    before: str  # empty: the answer begins with the JSON
    after: str
    name: str  # the keys
    arguments: str
    several: bool = True  # the template takes more than one call in a message


class ChatTemplate(Protocol):
    """How conversations become tokens for a model that learned another form than ours, which is nanochat/chat.py's."""

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Return (ids, mask) for a conversation; the mask is 1 on tokens that the assistant writes, else 0."""
        ...

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Return the ids up to the place where the assistant begins to write."""
        ...

    @property
    def call_form(self) -> CallForm | None:
        """How calls of tools are written; None if the model is not offered tools, or calls them in another way."""
        ...
