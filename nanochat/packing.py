"""Batches of whole conversations for fine-tuning, in an order that does not depend on the number of ranks.

Each epoch is its own shuffle, dealt into windows of some conversations. A window is packed as a whole: the longest
first, each into the row with the least room that still takes it. A place in the stream is therefore three numbers. A
conversation too long for a row loses its last turns, or is left out if not even the first ones fit; both are counted.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from nanochat.chat import render_conversation
from nanochat.log import print0
from nanochat.prefetch import Loader
from nanochat.tokenizer import Tokenizer

WINDOW = 512  # conversations
COUNTS = ("conversations", "shortened", "left out", "padding", "slots")  # of what has been packed; slots: of tokens
MANY = 0.1  # so large a share of conversations that are too long is told at once, any in the end
SUPERVISED = ("assistant", "all")


class ChatLoader(Loader):
    """Batches of conversations.

    conversations: has a length, and a conversation for each index; ValueErrors of a malformed one name its row.
    supervise: targets are what the assistant says, or all but what begins a row's
    conversations; no target is of another conversation than its input. epochs: after which progress is 1.
    """

    def __init__(
        self,
        conversations: Sequence[dict],
        tokenizer: Tokenizer,
        batch_size: int,
        seq_len: int,
        *,
        supervise: str = "assistant",
        epochs: float = 1.0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ):
        assert supervise in SUPERVISED, supervise
        if not len(conversations):
            raise ValueError("there is no conversation to train on: give the mixture at least one task with rows")
        setting = {"seed": seed, "seq_len": seq_len, "conversations": len(conversations), "supervise": supervise}
        setting["tokenizer"] = tokenizer.content_hash
        super().__init__(setting, batch_size, seq_len, rank, world_size, device)
        self._conversations, self._tokenizer, self._supervise = conversations, tokenizer, supervise
        self.total_epochs, self._told = epochs, False
        self._place = {"epoch": 0, "window": 0, "row": 0, "rows": 1, **dict.fromkeys(COUNTS, 0)}  # of the next row

    # ---- the batches ----

    def _arrive(self, places: list[dict[str, int]]) -> None:
        self._place = places[-1]

    def _rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, int]]]:
        """Each marked by the place behind the rows that the ranks have with it."""
        stream = self._stream()
        while True:
            rows = [next(stream) for _ in range(self.world_size)]
            yield *rows[self.rank][0], rows[-1][1]

    def _stream(self) -> Iterator[tuple[np.ndarray, dict[str, int]]]:
        """Rows of the stream from where the consumer is, each with the place behind it."""
        place = dict(self._place)
        while True:
            counts = {name: place[name] for name in COUNTS}
            rows = self._window(place["epoch"], place["window"], counts)
            for number in range(place["row"], len(rows)):
                place = {**place, "row": number + 1, "rows": len(rows)}
                if number + 1 == len(rows):
                    ended = (place["window"] + 1) * WINDOW >= len(self._conversations)
                    place |= counts | {"row": 0, "window": 0 if ended else place["window"] + 1}
                    place["epoch"] += ended
                    if ended and place["left out"] == place["conversations"]:
                        raise ValueError(f"none of the conversations fits into {self.seq_len} tokens: take more")
                yield rows[number], place

    def _window(self, epoch: int, window: int, counts: dict[str, int]) -> list[np.ndarray]:
        """Its rows, (2, seq_len) inputs and targets each; adds what it packed to the counts."""
        order = np.random.default_rng((self._setting["seed"], epoch)).permutation(len(self._conversations))
        chosen = order[window * WINDOW : (window + 1) * WINDOW]
        pieces = [piece for index in chosen if (piece := self._piece(int(index), counts)) is not None]
        long = counts["shortened"] + counts["left out"]
        if long > MANY * counts["conversations"] and not self._told:
            self._told = True
            said = f"{long:,} of {counts['conversations']:,} conversations have more than {self.seq_len:,} tokens"
            print0(f"{said}: they lose their last turns, or are left out")
        packed = best_fit([len(ids) for ids, _ in pieces], self.seq_len + 1)
        packed = packed or [[]]  # a window of which nothing fits is a row without targets: harmless, and there
        mixed = np.random.default_rng((self._setting["seed"], epoch, window)).permutation(len(packed))
        counts["slots"] += len(packed) * (self.seq_len + 1)
        counts["padding"] += len(packed) * (self.seq_len + 1) - sum(len(ids) for ids, _ in pieces)
        return [self._row([pieces[number] for number in packed[row]]) for row in mixed]

    def _piece(self, index: int, counts: dict[str, int]) -> tuple[list[int], list[int]] | None:
        try:
            piece, shortened = fitted(self._conversations[index], self._tokenizer, self.seq_len + 1)
        except ValueError as error:
            raise ValueError(f"conversation {index} of the mixture: {error}") from None
        counts["conversations"] += 1
        counts["shortened"] += shortened and piece is not None
        counts["left out"] += piece is None
        return piece

    def _row(self, pieces: list[tuple[list[int], list[int]]]) -> np.ndarray:
        bos = self._tokenizer.special_tokens["<|bos|>"]
        ids, learned = np.full(self.seq_len + 1, bos), np.zeros(self.seq_len + 1, dtype=bool)
        at = 0
        for tokens, mask in pieces:
            here = slice(at, at := at + len(tokens))
            ids[here] = tokens
            learned[here] = mask if self._supervise == "assistant" else [False] + [True] * (len(tokens) - 1)
        return np.stack([ids[:-1], np.where(learned[1:], ids[1:], -1)])

    # ---- where the consumer is ----

    @property
    def epoch(self) -> float:
        place, windows = self._place, -(-len(self._conversations) // WINDOW)
        last = len(self._conversations) - (windows - 1) * WINDOW
        size = WINDOW if place["window"] < windows - 1 else last
        return place["epoch"] + (place["window"] * WINDOW + size * place["row"] / place["rows"]) / len(
            self._conversations
        )

    @property
    def progress(self) -> float:
        return self.epoch / self.total_epochs

    def describe(self) -> dict[str, int | float]:
        """What became of the conversations in the windows that have been read to their end."""
        slots = max(self._place["slots"], 1)
        return {name: self._place[name] for name in COUNTS[:3]} | {"padding": self._place["padding"] / slots}

    def place(self) -> list[str]:
        """To be told where a loss is not finite."""
        return [f"epoch {self._place['epoch']}, up to row {self._place['row']} of window {self._place['window']}"]

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is, as small JSON, the same on all ranks."""
        return {"setting": dict(self._setting), "place": dict(self._place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader of the same setting was, on whatever number of ranks and with whatever batch size."""
        self.check_setting(state)
        self.close()
        self._place = dict(state["place"])


def fitted(conversation: dict, tokenizer: Tokenizer, room: int) -> tuple[tuple[list[int], list[int]] | None, bool]:
    """Ids and mask of as many whole turns as have room, None if none has; and whether any were cut off."""
    messages = conversation["messages"]
    ids, mask = render_conversation(conversation, tokenizer)
    if len(ids) <= room:
        return (ids, mask), False
    pairs = [end for end in range(2, len(messages)) if messages[end - 1]["role"] == "assistant"]
    for end in reversed(pairs):
        ids, mask = render_conversation({**conversation, "messages": messages[:end]}, tokenizer)
        if len(ids) <= room:
            return (ids, mask), True
    return None, True


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of the pieces in each row: from long to short, each into the fullest row that has room for it."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        at = bisect_left(free, (lengths[number], -1))
        if at == len(free):
            rows.append([])
            left, row = room, len(rows) - 1
        else:
            left, row = free.pop(at)
        rows[row].append(number)
        insort(free, (left - lengths[number], row))
    return rows
