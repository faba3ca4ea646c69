"""Runs of fine-tuning on a few conversations, in forked processes, from a base model of a few steps."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from base_runs import Base
from fake_hub import write_hub
from forks import run_module
from made_chats import chat

from nanochat.config import options
from nanochat.paths import read_json
from nanochat.settings import ChatTuneSettings
from nanochat.stages import STAGES
from nanochat.world.writer import write_world
from tasks.common import TEST, DataSet, Task

STEPS = 12
PARENT = ["--depth=1", "--num-iterations=6", "--eval-every=-1", "--save-every=-1", "--matrix-lr=0.03"]
SCRIPTS_PARENT = ["--depth=1", "--max-seq-len=128", "--num-iterations=3", "--eval-every=-1", "--save-every=-1"]
FLAGS = ["--no-compile", "--device-batch-size=2", f"--num-iterations={STEPS}", "--eval-every=5"]
FLAGS += ["--eval-tokens=400", "--eval-metrics-every=6", "--save-every=-1", "--keep-last=0"]
WORDS = "the quick brown fox of letter and".split()


@options()
class Config(ChatTuneSettings):
    """Fine-tune for a test."""


def sums(count: int, first: int = 0):
    """Conversations, of which a few are too long for a row of 32."""
    made = []
    for number in range(first, first + count):
        asked = f"{WORDS[number % 7]} {number % 5}+{number % 3}" + " fox" * (30 if number % 9 == 8 else 0)
        made.append(chat(asked, str(number % 5 + number % 3)))
    return made


class Chats(list):
    @property
    def rows(self):
        return {"Sums": len(self)}

    examples = rows

    def origin(self):
        return {}

    def questions(self):
        return ["fox 1+1"]


class Letters:
    """A task whose right answer is always B."""

    kind, data = "categorical", DataSet(task=Task, splits=(TEST,), baseline=0.5)

    def __len__(self):
        return 5

    def __getitem__(self, index: int):
        return chat(f"{index}?", "B", letters=["A", "B"])

    def hashes(self):
        return {}

    def evaluate_all(self, answers: list[tuple[dict, str]]):
        return [text == "B" for _, text in answers]


def tune(before: Callable | None, flags: list[str], inspect: Callable | None) -> None:
    """Fine-tune as a script does, on these conversations; inspect: gets the trainer before the first step."""
    from nanochat.config import run_script
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.objectives import next_token
    from nanochat.packing import chat_metrics, open_chats
    from nanochat.run import tuning
    from tasks.mixing import row_counts

    if before:
        before()

    def main(config: Config) -> None:
        with tuning("chat_sft", config) as trainer:
            if inspect:
                inspect(trainer)
            chats, new_chats = Chats(sums(90)), Chats(sums(30, 100))
            source = open_chats(trainer, chats, supervise="assistant")
            evaluations = chat_validation(trainer, new_chats, "assistant")
            evaluations += task_scores(trainer, lambda *_, **__: {"Letters": Letters()})
            state = trainer.fit(source, next_token, evaluations)
            trainer.finish(state, row_counts(chats, new_chats) | chat_metrics(state, source))

    sys.argv = ["tune", *flags]
    run_script(main)


class FromParent(Base):
    """A base model, `parent`, a small mirror of the hub, and runs of a script that starts from the model."""

    def __init__(self, folder: Path, script: str, flags: Sequence[str], parent: Sequence[str] = SCRIPTS_PARENT) -> None:
        super().__init__(folder)
        self.script, self.own_flags = script, ["--source=base", "--model-tag=parent", "--dtype=fp32", *flags]
        write_hub(folder / "hub")
        super().start("parent", *parent).done()

    def start(self, tag: str, *flags: str, ranks: int = 1, before: Callable | None = None, **variables: str):
        module = next(stage.module for stage in STAGES if stage.name == self.script)
        words = (module, *self.own_flags, f"--tag={tag}", *flags)
        return self.fork(run_module, before, *words, ranks=ranks, **variables)

    def of(self, tag: str):
        return self.folder / ("base_train" if tag == "parent" else self.script) / tag


class Tunes(FromParent):
    """Runs of `tune` in place of a script."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "chat_sft", FLAGS, PARENT)

    def tune(
        self,
        tag: str,
        *flags: str,
        ranks: int = 1,
        before: Callable | None = None,
        inspect: Callable | None = None,
        **variables: str,
    ):
        words = [*self.own_flags, f"--tag={tag}", *flags]
        return self.fork(tune, before, words, inspect, ranks=ranks, **variables)


SHORT = ["--tag=parent", "--dtype=fp32", "--no-compile", "--num-iterations=4", "--eval-every=2", "--eval-tokens=600"]
SHORT += ["--eval-metrics-every=0", "--eval-metrics-max-problems=5", "--max-seq-len=300", "--total-batch-size=1200"]
LONG = ["--max-seq-len=300", "--total-batch-size=1200"]  # as most conversations fit into


class Stages(FromParent):
    """A base model, a small mirror of the hub, and a world with words to spell."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "chat_sft", [], [*PARENT, *LONG])
        write_world(folder / "world", 1, "tiny")

    def stage(self, name: str, *flags: str, ranks: int = 1):
        return self.fork(run_module, None, f"scripts.{name}", *SHORT, *flags, ranks=ranks)

    def record(self, stage: str, tag: str = "parent"):
        return read_json(self.folder / stage / tag / "outcome.json")
