"""The table of stages, in the order a run takes them: what each starts from and how the report card shows it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """name: its folder, and its script if that is its own. parent: the stage whose artifact it starts from.

    section: its title in the report card. column: where its headline metrics stand in the card's summary.
    source: what scripts.chat_eval, one script for several stages, calls the parent; empty: it is another script's.
    """

    name: str
    section: str
    parent: str | None = None
    column: str = ""
    headline: tuple[str, ...] = ()
    source: str = ""

    @property
    def script(self) -> str:
        return "chat_eval" if self.source else self.name


CHAT = ("ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "GSM8K", "HumanEval", "ChatCORE")
SHOWN = (*CHAT, "ARC-Easy-Named", "ARC-Challenge-Named", "Questions")  # in the card's summary


def core_name(tasks: Iterable[str]) -> str:
    """What the mean over those of some tasks that count for it is called; "": none does."""
    *core, name = CHAT
    counted = len(set(tasks) & set(core))
    return name if counted == len(core) else f"{name} ({counted} of {len(core)} tasks)" if counted else ""


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
MODELS = {stage.source: stage.parent for stage in STAGES if stage.source}  # what --source calls them: their stage
