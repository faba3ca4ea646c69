"""Batches of whole conversations for fine-tuning, in an order that does not depend on the number of ranks.

Each epoch has a new random order, divided into windows with 512 conversations. A window is packed at once: the longest
conversation first, each into the fullest row with enough room. So the position in the stream is three numbers: epoch,
window, row; beside them the tokens with a loss are counted. A conversation too long for a row loses the last turns, or
is left out if not even the first turn fits; both are counted. So are the few that a public model's chat template
refuses.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nanochat.chat import render_conversation
from nanochat.dataloader import Batch, DataRecord, Loader
from nanochat.errors import TemplateError, UserError
from nanochat.gpt import GPT
from nanochat.log import Record, print0
from nanochat.metrics import kept_figures, validation_metrics
from nanochat.objectives import LossSum, next_token
from nanochat.protocols import Conversation, Conversations, Mixture
from nanochat.settings import ChatTuneSettings
from nanochat.start import OpenRun
from nanochat.statistics import Metrics, measured
from nanochat.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanochat.train import State

WINDOW = 512  # conversations
# In finished windows; padding and slots in tokens.
COUNTS = ("conversations", "shortened", "left out", "refused", "padding", "slots")
SUPERVISED = "supervised"  # tokens with a loss, in all rows so far; positions of older runs do not have it
REFUSED = 0.01  # largest share of the conversations that a chat template may refuse
EPOCHS_IN_A_STEP = 1.5  # beyond it a single step is too large for the data, and no rate has decayed
IN_A_WINDOW = 50  # of WINDOW: most of them that it may refuse, so that a mixture it cannot write ends the run early

Rendered = tuple[list[int], list[int]]  # ids and loss mask
Position = dict[str, int]  # epoch, window, row, rows (in the window of the last row), SUPERVISED, and COUNTS


@dataclass(eq=False, kw_only=True)
class ChatLoader(Loader[Conversations]):
    """Batches of conversations; a target of -1 has no loss.

    supervise: learn the tokens the "assistant" writes, or "all" tokens. Input and target always belong to the same
    conversation. Progress reaches 1 after `epochs`, or after `supervised_tokens` with a loss if that is not 0. part:
    the "mixture" that is learned, or the "validation part", which is too small to tell whether a chat template refuses
    too many: any number may be left out.
    """

    supervise: str = "assistant"
    epochs: float = 1.0
    supervised_tokens: int = 0
    part: str = "mixture"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._setting |= {"conversations": len(self.data), "supervise": self.supervise}
        self._kept_order = -1, np.empty(0, dtype=np.int64)  # an epoch and its order
        # The position of the next row, and counts for all windows before.
        self._place = {"epoch": 0, "window": 0, "row": 0, "rows": 1, SUPERVISED: 0, **dict.fromkeys(COUNTS, 0)}

    def origin(self) -> DataRecord:
        # A run learns from a Mixture; other conversations are validation.
        return self._setting | {"tasks": self.data.origin()}  # ty: ignore[missing-attribute]

    # ---- rows ----

    def _consumed(self, places: list[Position]) -> None:
        self._place = places[-1]

    def _rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, Position]]:
        """Yield this rank's rows, each with the position behind it and the other ranks' rows of its round."""
        place = self._place
        together = []
        while True:
            rows, counts = self._pack_window(place)
            # A run would train on nothing, and for ever if it is to end after so many supervised tokens.
            is_new = self.part == "mixture" and not place.get(SUPERVISED, 1)
            if is_new and not any((row[1] >= 0).any() for row in rows):
                raise UserError(
                    f"none of {counts['conversations']:,} conversations of the mixture has a token to learn that "
                    f"fits into {self.seq_len} tokens: use a longer --max-seq-len, or conversations with answers"
                )
            # A resumed run starts in the middle of a window.
            for number in range(place["row"], len(rows)):
                place = {**place, "row": number + 1, "rows": len(rows)}
                if SUPERVISED in place:
                    place[SUPERVISED] += int((rows[number][1] >= 0).sum())
                # The last row ends the window, and maybe the epoch.
                if place["row"] == len(rows):
                    place |= {**counts, "row": 0, "window": place["window"] + 1}
                    if place["window"] * WINDOW >= len(self.data):
                        place |= {"window": 0, "epoch": place["epoch"] + 1}
                # Every rank packs all rows, which is cheap, and keeps one.
                together.append(rows[number])
                if len(together) == self.world_size:
                    yield *together[self.rank], place
                    together = []

    def _pack_window(self, place: Position) -> tuple[list[np.ndarray], dict[str, int]]:
        """Return the rows for the window at a position, in random order, and the counts including this window."""
        epoch = place["epoch"]
        window = place["window"]
        counts = {name: place.get(name, 0) for name in COUNTS}  # positions of older runs count no refused ones
        order = self._order(epoch)
        pieces: list[Rendered] = []
        refused: list[str] = []
        size = self.seq_len + 1
        numbers = order[window * WINDOW : (window + 1) * WINDOW].tolist()
        for number in numbers:
            counts["conversations"] += 1
            try:
                piece, is_short = fit_conversation(self.data[number], self.tokenizer, size)
            except TemplateError as error:
                refused.append(f"conversation {number:,} of the {self.part}: {error}")
                continue
            if piece is None:
                counts["left out"] += 1
            else:
                if is_short:
                    counts["shortened"] += 1
                pieces.append(piece)
        counts["refused"] += len(refused)
        allowed = REFUSED * max(counts["conversations"], len(self.data))
        is_strict = self.part == "mixture"
        if refused and is_strict and (counts["refused"] > allowed or len(refused) > IN_A_WINDOW):
            raise UserError(
                f"{refused[0]} ({counts['refused']:,} of {counts['conversations']:,} conversations are refused)"
            )
        if refused:
            print0(f"data: {len(refused)} of {len(numbers)} conversations are left out; {refused[0]}")
        # If nothing fits, the window still gets one row, without targets.
        gap = self._gap(pieces)
        packed = best_fit([len(ids) + gap for ids, _ in pieces], size + gap) or [[]]
        slots = len(packed) * size
        counts["slots"] += slots
        counts["padding"] += slots - sum(len(ids) for ids, _ in pieces)
        # Packing goes from long conversations to short ones, so shuffle the rows.
        shuffled = np.random.default_rng((self.seed, epoch, window)).permutation(len(packed))
        return [self._row([pieces[number] for number in packed[row]]) for row in shuffled], counts

    def _order(self, epoch: int) -> np.ndarray:
        """Return the order of conversations in an epoch, the same for every rank and every resumed run.

        It is kept for the epoch's other windows: a small task repeated a thousand times has millions of conversations.
        """
        kept, order = self._kept_order
        if kept != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.data))
            self._kept_order = epoch, order
        return order

    def _gap(self, pieces: list[Rendered]) -> int:
        """Return 1 if a bos is needed between conversations: not every public template begins with one."""
        return int(any(ids[0] != self.tokenizer.bos for ids, _ in pieces))

    def _row(self, pieces: list[Rendered]) -> np.ndarray:
        """Return (2, seq_len) inputs and targets for a row, padded with bos. pieces: each has ids and a loss mask."""
        # One token more than inputs, as targets are shifted by one.
        ids = np.full(self.seq_len + 1, self.tokenizer.bos)
        learned = np.zeros(self.seq_len + 1, dtype=bool)
        start = 0
        gap = self._gap(pieces)  # its bos is there already
        for tokens, mask in pieces:
            end = start + len(tokens)
            ids[start:end] = tokens
            learned[start:end] = self.supervise == "all" or mask
            # The token before it belongs to another conversation.
            learned[start] = False
            start = end + gap
        return np.stack([ids[:-1], np.where(learned[1:], ids[1:], -1)])

    # ---- position of the consumer ----

    @property
    def epoch(self) -> float:
        """Passes over the conversations."""
        place = self._place
        total = len(self.data)
        start = place["window"] * WINDOW
        size = min(WINDOW, total - start)  # the last window may be smaller
        return place["epoch"] + (start + size * place["row"] / place["rows"]) / total

    @property
    def metrics(self) -> dict[str, float]:  # ty: ignore[incompatible-property-override]  # nobody sets them
        return {"train/epoch": self.epoch}

    @property
    def progress(self) -> float:
        return self._place[SUPERVISED] / self.supervised_tokens if self.supervised_tokens else self.epoch / self.epochs

    def describe(self) -> dict[str, int | float]:
        """Return the counts for finished windows, padding as a share of the slots, and the tokens with a loss."""
        counts = {name: self._place.get(name, 0) for name in COUNTS}
        slots = counts.pop("slots")
        supervised = {SUPERVISED: self._place[SUPERVISED]} if SUPERVISED in self._place else {}
        return {**counts, "padding": counts["padding"] / max(slots, 1), **supervised}

    def state_dict(self) -> Record:
        """Return the position as small JSON, the same on all ranks."""
        return {"setting": self._setting, "place": self._place}

    def load_state_dict(self, state: Record) -> None:
        """Continue at the position of a loader with the same setting; ranks and batch size may differ."""
        self.close()
        self._place = state["place"]


def fit_conversation(conversation: Conversation, tokenizer: Tokenizer, room: int) -> tuple[Rendered | None, bool]:
    """Return (ids and mask for as many turns as fit into `room` tokens, True if answers were cut off).

    None instead of ids and mask if not even the first turn fits.
    """
    messages = conversation["messages"]
    # Drop turns from the end: the last message is always from the assistant.
    ends = [end for end in range(len(messages), 0, -1) if messages[end - 1]["role"] == "assistant"]
    for end in ends:
        rendered = render_conversation({**conversation, "messages": messages[:end]}, tokenizer)
        if len(rendered[0]) <= room:
            return rendered, end < ends[0]
    return None, True


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return the piece numbers in each row: longest piece first, each into the fullest row with enough room."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted, so that bisect finds the fullest row
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        index = bisect_left(free, (lengths[number], -1))
        # No row has room: start one, which has the most.
        if index == len(free):
            free.append((room, len(rows)))
            rows.append([])
        left, row = free.pop(index)
        rows[row].append(number)
        insort(free, (left - lengths[number], row))
    return rows


# ---- its loss ----


def answer_tokens(model: GPT, batch: Batch) -> LossSum:
    """Return what `next_token` returns, where a part of the tokens is learned: the others get no logits on a CPU.

    On a GPU the host would have to wait for their number.
    """
    inputs, targets = batch
    if inputs.device.type != "cpu":
        return next_token(model, batch)
    labels = targets.flatten()
    learned = (labels >= 0).nonzero().squeeze(1)
    if not learned.numel():
        learned = labels.new_zeros(1)  # a sum of nothing still has a gradient, and all ranks take part
    hidden = model.hidden(inputs).flatten(0, 1).index_select(0, learned)
    return LossSum(model.loss(hidden, labels[learned]), (labels >= 0).sum())


# ---- for a stage ----


def open_chats(trainer: OpenRun[ChatTuneSettings], chats: Mixture, supervise: str) -> ChatLoader:
    """Return the source of batches of these conversations. supervise: as in ChatLoader."""
    start = trainer.start
    runtime = trainer.runtime
    config = start.config
    return ChatLoader(
        chats,
        start.tokenizer,
        start.rows,
        start.row_length,
        supervise=supervise,
        epochs=config.epochs,
        supervised_tokens=max(0, config.target_supervised_tokens),
        seed=config.seed,
        rank=runtime.rank,
        world_size=runtime.world_size,
        device=runtime.device,
    )


def chat_metrics(state: "State", source: ChatLoader) -> Metrics:
    """Return the metrics for training on conversations: validation, task scores, and what was read."""
    counts = source.describe()
    if state.step == 1 and source.epoch > EPOCHS_IN_A_STEP * source.epochs:
        print0(
            f"data: the one step has read the conversations {source.epoch:.1f} times: use a smaller --total-batch-size"
        )
    return {
        "Number of iterations": state.step,
        "Training loss": measured(state.loss),
        **validation_metrics(state, "loss", "Validation loss"),
        **validation_metrics(state, "bpb", "Final validation bpb"),
        **kept_figures(state, "last", "chat/"),
        "Epochs": measured(source.epoch, spec=".2f"),
        **({"Supervised tokens": counts[SUPERVISED]} if source.supervised_tokens else {}),
        "Conversations read": counts["conversations"],
        "Shortened, being too long": counts["shortened"],
        "Left out, being too long": counts["left out"],
        **({"Left out, refused by the chat template": counts["refused"]} if counts["refused"] else {}),
        "Padding": measured(100 * counts["padding"], spec=".2f", unit="%"),
    }
