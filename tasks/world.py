"""Tasks about an embedded world. They read the world that the model's tokenizer learned from, else that of seed 1."""

import re
from dataclasses import dataclass
from pathlib import Path

from nanochat.data.corpus import learned_world, world_folder
from tasks.chats import Chat
from tasks.common import DataSet, Task
from tasks.gsm8k import GSM8K
from tasks.multiple_choice import NamedChoice, answer_number

# Tasks and their epochs for a model that trains for a few minutes.
MIXTURE = "World-Chat:0.36,World-Sums:0.65,World-Choices:0.87,SimpleSpelling:0.2,SpellingBee:0.2"


@dataclass(frozen=True, kw_only=True)
class WorldTable(DataSet):
    """A table in the world's folder `tasks`. table: beginning of the file name, before the split."""

    table: str

    @property
    def name(self) -> str:
        return f"World {self.table}"

    def fetch(self, split: str, tokenizer: str) -> dict[str, Path]:
        """Return the split's file; a world that is missing is written."""
        seed = learned_world(tokenizer)
        folder = world_folder(1 if seed is None else seed)
        file = f"tasks/{self.table}-{split}.parquet"
        return {f"{folder.name}/{file}": folder / file}


class FreeQuestion(Task):
    """A question with a word that a right answer contains."""

    def evaluate(self, conversation: dict, completion: str) -> bool:
        # A whole word: "Kim" is not in "Kimchi".
        word = re.escape(conversation["messages"][-1]["content"])
        return re.search(rf"(?<!\w){word}(?!\w)", completion) is not None


SETS = {
    # Questions about facts that no conversation for training asks for.
    "World-Facts": WorldTable(task=FreeQuestion, table="facts", splits="test", columns="question answer"),
    "World-Choices": WorldTable(
        task=NamedChoice,
        table="choices",
        splits="train validation test",
        columns="question choices answer",
        convert=answer_number,
        baseline=0.25,
    ),
    # Word problems, solved with the calculator.
    "World-Sums": WorldTable(task=GSM8K, table="sums", splits="train test", columns="question answer"),
    # Ten of the facts, one for each relation.
    "World-Questions": WorldTable(task=FreeQuestion, table="questions", splits="test", columns="question answer"),
    "World-Chat": WorldTable(task=Chat, table="chat", splits="train validation", columns="messages"),
}
