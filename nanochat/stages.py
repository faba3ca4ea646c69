"""The table of stages, in the order a run takes them: what each starts from and how the report card shows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """name: its script and its folder. parent: the stage whose artifact it starts from.

    section: its title in the report card. column: where its headline metrics stand in the card's summary.
    """

    name: str
    section: str
    parent: str | None = None
    column: str = ""
    headline: tuple[str, ...] = ()


STAGES = (
    Stage("tok_train", "Tokenizer training"),
    Stage("tok_eval", "Tokenizer evaluation", parent="tok_train"),
    Stage("base_train", "Base model training", "tok_train"),
    Stage("base_loss", "Base model loss", "base_train", "BASE", ("train bpb", "val bpb")),
    Stage("base_eval", "Base model evaluation", "base_train", "BASE", ("CORE metric",)),
)
