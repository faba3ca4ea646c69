"""The table of stages, in the order of a run: the parent of each, and its place in the report card."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stage:
    """A step of the main job that leaves an outcome."""

    name: str  # folder of the stage, and name of its script if the stage has one of its own
    section: str  # title in the report card
    parent: str | None = None  # stage whose artifact is the input
    column: str = ""  # of the summary, for the headline metrics
    headline: tuple[str, ...] = ()
    source: str = ""  # name of the parent in --source of scripts.chat_eval, one script for several stages

    @property
    def script(self) -> str:
        return "chat_eval" if self.source else self.name


CHAT = ("ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "GSM8K", "HumanEval", "ChatCORE")  # the last is their mean
SHOWN = (*CHAT, "ARC-Easy-Named", "ARC-Challenge-Named", "Questions")  # in the summary of the report card


def core_name(tasks: Iterable[str]) -> str:
    """Return the display name of ChatCORE over these tasks; "" if none of them counts for ChatCORE."""
    *core, name = CHAT
    counted = len(set(tasks) & set(core))
    if counted == len(core):
        return name
    return f"{name} ({counted} of {len(core)} tasks)" if counted else ""


STAGES = (
    Stage("tok_train", "Tokenizer training"),
    Stage("tok_eval", "Tokenizer evaluation", parent="tok_train"),
    Stage("base_train", "Base model training", "tok_train"),
    Stage("base_loss", "Base model loss", "base_train", "BASE", ("train bpb", "val bpb")),
    Stage("base_eval", "Base model evaluation", "base_train", "BASE", ("CORE metric",)),
    Stage("chat_eval_base", "Chat evaluation base", "base_train", "BASE", SHOWN, source="base"),
    Stage("mid_train", "Midtraining", "base_train", "MID", ("Minimum validation bpb",)),
    Stage("chat_eval_mid", "Chat evaluation mid", "mid_train", "MID", SHOWN, source="mid"),
    Stage("chat_sft", "Chat SFT", "mid_train", "SFT", ("Validation loss",)),
    Stage("chat_eval_sft", "Chat evaluation sft", "chat_sft", "SFT", SHOWN, source="sft"),
    Stage("chat_rl", "Chat RL", "chat_sft"),
    Stage("chat_eval_rl", "Chat evaluation rl", "chat_rl", "RL", SHOWN, source="rl"),
)
MODELS = {stage.source: stage.parent for stage in STAGES if stage.source}  # --source → stage
Source = Literal[tuple(MODELS)]  # type of such a flag
