"""Alarms of a recursive run: what its metric log shows that is wrong, and what to do about it."""

from collections.abc import Sequence
from itertools import count, pairwise, takewhile

from nanochat.log import Record, print0, read_metrics
from nanochat.run import Trainer
from nanochat.train import Evaluation, State
from tracks.recursion.model import RecursiveGPT
from tracks.recursion.settings import validation_every

INVERTED_EVALUATIONS = 3  # in a row
LEAST_REFINEMENT = 0.1  # of the last exit, relative to the first one
MAX_GRADIENT_NORM = 20.0


def find_alarms(records: Sequence[Record], finished: bool, is_carried: bool = False) -> dict[str, str]:
    """Return the alarms that a metric log gives cause for: name -> sentence. is_carried: of a run with --carry."""
    found = {}
    exits = [one for one in validated_exits(records) if len(one) > 1]  # a single one has no order
    latest = exits[-INVERTED_EVALUATIONS:]
    if len(latest) == INVERTED_EVALUATIONS and not any(map(in_order, latest)):
        found["order"] = (
            "an exit is worse than the one before it, in several evaluations in a row: halve the learning rates "
            "(--matrix-lr, --embedding-lr), keep --grad-clip at 1, and raise --warmup-steps"
        )
    norm = max((record.get("train/grad_norm", 0.0) for record in records), default=0.0)
    if norm > MAX_GRADIENT_NORM:
        found["gradient"] = f"the gradient's norm was {norm:.1f}: lower --matrix-lr, or --grad-clip if it is above 1"
    if finished and exits and (fall := refinement(exits[-1])) < LEAST_REFINEMENT:
        how = f"only {100 * fall:.1f}% better" if fall > 0 else f"{-100 * fall:.1f}% worse"
        weights = "" if is_carried else ", or raise --supervision-base"  # --carry has no weights of exits
        found["refinement"] = (
            f"the last exit is {how} than the first: train longer, {'or ' if is_carried else ''}lower --matrix-lr"
            f"{weights}"
        )
    return found


def validated_exits(records: Sequence[Record]) -> list[list[float]]:
    """Return the bits per byte at each exit, for each validation after the first step: before, all exits are equal.

    With a curriculum, of the exits that are trained by then.
    """
    found = []
    trained = None  # all
    for record in records:
        trained = record.get("train/exits", trained)
        # Exact names: errors are beside them.
        exits = list(takewhile(record.__contains__, (f"val/bpb at exit {i}" for i in count())))
        if trained is not None:
            exits = exits[: int(trained)]
        if exits and record["step"] > 0:
            found.append([record[name] for name in exits])
    return found


def refinement(bpb: Sequence[float]) -> float:
    """Return the fall from the first exit to the last, relative to the first."""
    return 1 - bpb[-1] / bpb[0]


def in_order(bpb: Sequence[float]) -> bool:
    """Return True if no exit is worse than the one before, but for rounding."""
    return all(later <= 1.0001 * earlier for earlier, later in pairwise(bpb))


def refinement_alarms(trainer: Trainer) -> list[Evaluation]:
    """Return the evaluation that prints the alarms, to run after validation; none for a model with one exit."""
    assert isinstance(trainer.model, RecursiveGPT)
    if trainer.model.steps < 2:
        return []

    def check(state: State) -> None:
        printed = state.notes.setdefault("alarms", [])  # saved with the checkpoint: once in a run
        carried = getattr(trainer.config, "carry", False)
        for name, sentence in find_alarms(read_metrics(trainer.log.path), state.progress >= 1, carried).items():
            if name not in printed:
                print0(f"step {state.step:05d} | alarm: {sentence}")
                printed.append(name)

    return [Evaluation(validation_every(trainer.config), check)]
