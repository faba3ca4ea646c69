"""The table of stages, in the order of a run: the parent of each, and its place in the report card."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nanochat import registry

# Means of several tasks, above chance. A model of an embedded world is scored with the world's tasks alone.
CHAT_CORE = ("ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "GSM8K", "HumanEval")
WORLD_MEAN = ("World-Facts", "World-Choices", "World-Sums")
MEANS = {"ChatCORE": CHAT_CORE, "World mean": WORLD_MEAN}
# Rows in the summary of the report card.
SHOWN = (*CHAT_CORE, "ChatCORE", *WORLD_MEAN, "World mean", "World-Talk", "World-Questions")


def mean_name(mean: str, tasks: Iterable[str]) -> str:
    """Return the display name of a mean over these tasks, of which at least one counts for it."""
    counted = len(set(tasks) & set(MEANS[mean]))
    return mean if counted == len(MEANS[mean]) else f"{mean} ({counted} of {len(MEANS[mean])} tasks)"


@dataclass(frozen=True)
class Stage:
    """A step of the main job that leaves an outcome."""

    name: str  # folder of the stage, and name of its script; one script evaluates the models of several stages
    section: str  # title in the report card
    parent: str | None = None  # stage whose artifact is the input
    source: str = ""  # name of the parent in --source of scripts.chat_eval, one script for several stages
    column: str = ""  # of the summary, for the headline metrics
    headline: Sequence[str] = ()  # metrics in the summary
    planned: bool = True  # part of the main job; the summary shows other stages where they ran

    @property
    def script(self) -> str:
        return re.sub(r"(?<=_eval|_loss)_\w+", "", self.name)

    @property
    def module(self) -> str:
        """The module that runs the stage."""
        return registry.STAGES.get(self.name, f"scripts.{self.script}")


CORE = ("CORE metric", "World CORE metric")
STAGES = [
    Stage("tok_train", "Tokenizer training"),
    Stage("tok_eval", "Tokenizer evaluation", "tok_train"),
    Stage("base_train", "Base model training", "tok_train"),
    Stage("base_loss", "Base model loss", "base_train", column="BASE", headline=("train bpb", "val bpb")),
    Stage("base_eval", "Base model evaluation", "base_train", column="BASE", headline=CORE),
    Stage(
        "chat_eval_base",
        "Chat evaluation base",
        "base_train",
        source="base",
        column="BASE",
        headline=SHOWN,
        planned=False,
    ),
    Stage("mid_train", "Midtraining", "base_train", column="MID", headline=("Minimum validation bpb",)),
    Stage("base_loss_mid", "Loss after midtraining", "mid_train", planned=False),
    Stage("base_eval_mid", "CORE after midtraining", "mid_train", column="MID", headline=CORE, planned=False),
    Stage("chat_eval_mid", "Chat evaluation mid", "mid_train", source="mid", column="MID", headline=SHOWN),
    Stage("chat_sft", "Chat SFT", "mid_train", column="SFT", headline=("Validation loss",)),
    Stage("base_loss_sft", "Loss after SFT", "chat_sft", planned=False),
    Stage("base_eval_sft", "CORE after SFT", "chat_sft", column="SFT", headline=CORE, planned=False),
    Stage("chat_eval_sft", "Chat evaluation sft", "chat_sft", source="sft", column="SFT", headline=SHOWN),
    Stage("chat_dpo", "Chat DPO", "chat_sft", planned=False),
    Stage("base_loss_dpo", "Loss after DPO", "chat_dpo", planned=False),
    Stage("base_eval_dpo", "CORE after DPO", "chat_dpo", column="DPO", headline=CORE, planned=False),
    Stage(
        "chat_eval_dpo",
        "Chat evaluation dpo",
        "chat_dpo",
        source="dpo",
        column="DPO",
        headline=SHOWN,
        planned=False,
    ),
    Stage("chat_rl", "Chat RL", "chat_sft"),
    Stage("base_loss_rl", "Loss after RL", "chat_rl", planned=False),
    Stage("base_eval_rl", "CORE after RL", "chat_rl", column="RL", headline=CORE, planned=False),
    Stage("chat_eval_rl", "Chat evaluation rl", "chat_rl", source="rl", column="RL", headline=SHOWN),
]
# Titles in the report card, also of commands that are not part of the main job.
TITLES = (
    {stage.name: stage.section for stage in STAGES} | registry.SECTIONS | {"scaling": "Scaling", "ladder": "Ladder"}
)
MODELS = {stage.source: stage.parent for stage in STAGES if stage.source and stage.parent}  # --source → stage
Source = Literal["base", "mid", "sft", "dpo", "rl"]  # type of such a flag: the keys


def core_stage(source: str) -> str:
    """Return the stage of scripts.base_eval for the model of --source."""
    return "base_eval" if source == "base" else f"base_eval_{source}"


def loss_stage(source: str) -> str:
    """Return the stage of scripts.base_loss for the model of --source."""
    return "base_loss" if source == "base" else f"base_loss_{source}"


def source_of(evaluation: str) -> str:
    """Return the stage whose model an evaluation has scored, as --source names it."""
    found = re.search(r"_(?:eval|loss)_(\w+)", evaluation)
    return found[1] if found else "base"
