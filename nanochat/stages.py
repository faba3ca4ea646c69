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


def core_name(tasks: Iterable[str]) -> str:
    """What the mean over some tasks is called: ChatCORE if it is over all of them; "": it has no name."""
    *core, name = CHAT
    found = set(tasks)
    if found <= set(core):
        return name if len(found) == len(core) else f"{name} ({len(found)} of {len(core)} tasks)"
    return ""


STAGES = (
    Stage("tok_train", "Tokenizer training"),
    Stage("tok_eval", "Tokenizer evaluation", parent="tok_train"),
    Stage("base_train", "Base model training", "tok_train"),
    Stage("base_loss", "Base model loss", "base_train", "BASE", ("train bpb", "val bpb")),
    Stage("base_eval", "Base model evaluation", "base_train", "BASE", ("CORE metric",)),
    Stage("chat_eval_base", "Chat evaluation base", "base_train", "BASE", CHAT, source="base"),
    Stage("mid_train", "Midtraining", "base_train", "MID", ("Minimum validation bpb",)),
    Stage("chat_eval_mid", "Chat evaluation mid", "mid_train", "MID", CHAT, source="mid"),
    Stage("chat_sft", "Chat SFT", "mid_train", "SFT", ("Training loss", "Validation loss")),
    Stage("chat_eval_sft", "Chat evaluation sft", "chat_sft", "SFT", CHAT, source="sft"),
    Stage("chat_rl", "Chat RL", "chat_sft"),
    Stage("chat_eval_rl", "Chat evaluation rl", "chat_rl", "RL", CHAT, source="rl"),
)
MODELS = {stage.source: stage.parent for stage in STAGES if stage.source}  # what --source calls them: their stage
