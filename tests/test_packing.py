"""Conversations in rows: each whole and once, nothing supervised across them, exact progress and state."""

import json
import random
from itertools import islice, pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from made_chats import chat
from models import CONFIGS, lively
from torch.testing import assert_close

from nanochat import packing
from nanochat.chat import render_conversation
from nanochat.cross_entropy import cross_entropy
from nanochat.errors import TemplateError, UserError
from nanochat.objectives import next_token
from nanochat.packing import ChatLoader, answer_tokens, best_fit, chat_metrics, fit_conversation
from nanochat.tokenizer import Tokenizer
from nanochat.train import State

SEED = 5


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["the cat sat on the mat and counted one two three"] * 20, 300)


def chats(count):
    dice = random.Random(SEED)

    def words(most):
        return " ".join(dice.choice("the cat sat on mat and two".split()) for _ in range(dice.randint(1, most)))

    made = []
    tool = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}]
    for number in range(count):
        texts = []
        for turn in range(dice.randint(1, 4)):
            texts.append(f"{number} {turn} {words(6)}")
            texts.append(dice.choice((words(6), [{"type": "text", "text": words(3)}, *tool])))
        made.append(chat(*texts))
    return made


def rows_of(loader, batches):
    return torch.cat([torch.stack(next(loader), 1) for _ in range(batches)])  # (rows, 2, seq_len)


@pytest.mark.parametrize("supervise", ["assistant", "all"])
def test_an_epoch_holds_every_conversation_once_with_its_own_targets(tokenizer, monkeypatch, supervise) -> None:
    monkeypatch.setattr(packing, "WINDOW", 16)
    given, length = chats(50), 160
    expected = []
    for conversation in given:
        ids, mask = fit_conversation(conversation, tokenizer, length + 1)[0]
        mask = mask if supervise == "assistant" else [0] + [1] * (len(ids) - 1)
        expected.append(sorted(token for token, learned in zip(ids, mask, strict=True) if learned))
    bos, found = tokenizer.special_tokens["<|bos|>"], []
    with ChatLoader(given, tokenizer, 1, length, supervise=supervise, seed=SEED) as loader:
        while loader.epoch < 1:
            inputs, targets = (part[0] for part in next(loader))
            assert inputs[0] == bos
            after = torch.cat([inputs[1:], torch.tensor([-2])])
            assert ((targets == -1) | (targets == after) | (after == -2)).all()
            assert (targets != bos).all()  # where the next conversation begins nothing is asked for
            starts = [*(inputs == bos).nonzero().flatten().tolist(), length]
            found += [sorted(targets[a:b][targets[a:b] >= 0].tolist()) for a, b in pairwise(starts)]
    assert sorted(piece for piece in found if piece) == sorted(expected)
    assert loader.describe()["conversations"] == 50
    assert loader.describe()["left out"] == 0
    assert loader.progress == 1


def test_an_epoch_is_shuffled_once(tokenizer, monkeypatch) -> None:
    """Not for each of its windows: with millions of conversations that takes longer than a step."""
    monkeypatch.setattr(packing, "WINDOW", 8)
    orders = []

    def seeded(seed: tuple[int, ...]) -> np.random.Generator:
        if len(seed) == 2:  # an epoch; with a third number a window
            orders.append(seed)
        return np.random.Generator(np.random.PCG64(seed))

    monkeypatch.setattr(np.random, "default_rng", seeded)
    with ChatLoader(chats(40), tokenizer, 2, 160, seed=SEED) as loader:
        while loader.epoch < 2:
            next(loader)
    assert orders == [(SEED, epoch) for epoch in range(len(orders))]
    assert len(orders) >= 2


def test_the_stream_is_the_same_for_any_ranks_and_batches_from_any_position(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(packing, "WINDOW", 8)
    given = chats(30)
    with ChatLoader(given, tokenizer, 2, 128, seed=3) as loader:
        whole = rows_of(loader, 40)
        assert loader.epoch > 1
        last = loader.epoch, loader.describe()
    # cut: rows, which one rank has read before.
    for ranks, batch, cut in ((2, 4, 0), (4, 8, 0), (2, 2, 2), (2, 2, 14), (4, 8, 24), (1, 3, 50)):
        with ChatLoader(given, tokenizer, 2, 128, seed=3) as loader:
            for _ in range(cut // 2):
                next(loader)
            state = json.loads(json.dumps(loader.state_dict()))
        parts = []
        for rank in range(ranks):
            with ChatLoader(given, tokenizer, batch, 128, seed=3, rank=rank, world_size=ranks) as loader:
                loader.load_state_dict(state)
                parts.append(rows_of(loader, (80 - cut) // batch))
                assert (loader.epoch, loader.describe()) == last
        assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole[cut:]), (ranks, batch, cut)
    with ChatLoader(given, tokenizer, 4, 128, seed=2) as loader:
        assert not torch.equal(rows_of(loader, 20), whole)


@pytest.mark.parametrize("supervise", ["assistant", "all"])
def test_a_run_may_end_after_so_many_tokens_with_a_loss(tokenizer, monkeypatch, supervise) -> None:
    monkeypatch.setattr(packing, "WINDOW", 8)
    setting = {"supervise": supervise, "seed": 3, "supervised_tokens": 700}
    with ChatLoader(chats(30), tokenizer, 2, 128, **setting) as loader:
        counted, epoch = [], 0.0
        while loader.progress < 1:
            counted.append(int((next(loader)[1] >= 0).sum()))
            assert loader.describe()["supervised"] == sum(counted)
            assert loader.progress == sum(counted) / 700
        assert sum(counted[:-1]) < 700 <= sum(counted)
        epoch, state = loader.epoch, json.loads(json.dumps(loader.state_dict()))
    # Two ranks, each with a row of a batch, count the same; and they go on from a position in the middle.
    for rank in range(2):
        with ChatLoader(chats(30), tokenizer, 2, 128, rank=rank, world_size=2, **setting) as loader:
            for _ in counted[:-1]:
                next(loader)
            loader.load_state_dict(loader.state_dict())
            next(loader)
            assert (loader.epoch, loader.describe()["supervised"]) == (epoch, sum(counted))
    # A position of a run that did not count them yet, with another horizon.
    del state["place"]["supervised"]
    with ChatLoader(chats(30), tokenizer, 2, 128, **setting | {"supervised_tokens": 0}) as loader:
        loader.load_state_dict(state)
        next(loader)
        assert (loader.progress > epoch, "supervised" in loader.describe()) == (True, False)
    # It would never end; and without such a limit nothing would be learned.
    for limit in (700, 0):
        with (
            ChatLoader(chats(30), tokenizer, 2, 3, **setting | {"supervised_tokens": limit}) as loader,
            pytest.raises(UserError, match=r"none of 8 conversations of the mixture has a token .* fits into 3 tokens"),
        ):
            next(loader)


def test_long_conversations_lose_whole_turns_or_are_left_out_and_counted(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(packing, "WINDOW", 8)
    short, hopeless = ("one", "two"), ("the cat " * 30, "three")
    long, hopeless, short = chat(*short, *hopeless), chat(*hopeless), chat(*short)
    room = len(render_conversation(short, tokenizer)[0])
    assert fit_conversation(long, tokenizer, room) == (render_conversation(short, tokenizer), True)
    assert fit_conversation(hopeless, tokenizer, room) == (None, True)
    assert fit_conversation(short, tokenizer, room) == (render_conversation(short, tokenizer), False)
    # A question without an answer at the end is no turn.
    asked = {"messages": [*short["messages"], {"role": "user", "content": "and"}]}
    assert fit_conversation(asked, tokenizer, room) == (render_conversation(short, tokenizer), False)
    with ChatLoader([long, hopeless, short, short], tokenizer, 1, room - 1) as loader:
        while loader.epoch < 1:
            next(loader)
    counts = loader.describe()
    assert (counts["conversations"], counts["shortened"], counts["left out"], counts["padding"]) == (4, 1, 1, 0)


def test_a_single_step_that_is_larger_than_the_data_is_told(tokenizer, capsys) -> None:
    for rows, is_told in ((40, True), (1, False)):
        with ChatLoader(chats(5), tokenizer, rows, 128) as loader:
            next(loader)
            chat_metrics(State(step=1), loader)
        said = capsys.readouterr().out
        assert ("use a smaller --total-batch-size" in said) is is_told


class Foreign:
    """A template that begins with no bos, and takes no question with the word mat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def render(self, conversation: dict) -> tuple[list[int], list[int]]:
        question, answer = (message["content"] for message in conversation["messages"])
        if "mat" in question:
            raise TemplateError("the chat template refuses the conversation: no mats")
        parts = self.tokenizer.encode(question), self.tokenizer.encode(answer)
        return [*parts[0], *parts[1]], [0] * len(parts[0]) + [1] * len(parts[1])


@pytest.fixture
def foreign(tokenizer):
    found = Tokenizer(tokenizer.core)
    found.template = Foreign(found)
    return found


@pytest.mark.parametrize("supervise", ["assistant", "all"])
def test_a_bos_parts_conversations_whose_template_has_none(foreign, supervise) -> None:
    given = [chat(f"{number} one two", "three " * (1 + number % 3)) for number in range(40)]
    expected = sorted(foreign.template.render(one)[0] for one in given)
    found, learned = [], 0
    with ChatLoader(given, foreign, 1, 60, supervise=supervise) as loader:
        while loader.epoch < 1:
            inputs, targets = (part[0].tolist() for part in next(loader))
            row = [*inputs, targets[-1] if targets[-1] >= 0 else foreign.bos]
            text = ",".join(map(str, row)).split(f",{foreign.bos}")
            found += [[int(id) for id in piece.strip(",").split(",")] for piece in text if piece.strip(",")]
            assert foreign.bos not in targets
            learned += sum(target >= 0 for target in targets)
    assert sorted(found) == expected
    masks = [foreign.template.render(one)[1] for one in given]
    assert learned == sum(sum(mask) if supervise == "assistant" else len(mask) - 1 for mask in masks)


def test_a_template_may_refuse_a_few_conversations(foreign, capsys) -> None:
    good, bad = chat("one two", "three"), chat("the mat", "three")
    with ChatLoader([*[good] * 150, bad], foreign, 1, 60) as loader:
        while loader.epoch < 1:
            next(loader)
        assert loader.describe()["conversations"] == 151
        assert loader.describe()["refused"] == 1
        state = loader.state_dict()
    told = "data: 1 of 151 conversations are left out; conversation 150 of the mixture: the chat template refuses"
    assert told in capsys.readouterr().out
    del state["place"]["refused"]  # as before they were counted
    with ChatLoader([*[good] * 150, bad], foreign, 1, 60) as loader:
        loader.load_state_dict(state)
        next(loader)
    sentence = r"conversation \d+ of the mixture: the chat template refuses.*\(2 of 152 conversations are refused\)"
    with (
        ChatLoader([*[good] * 150, bad, bad], foreign, 1, 60) as loader,
        pytest.raises(UserError, match=sentence),
    ):
        next(loader)


def test_of_a_validation_part_a_template_may_refuse_more(foreign, capsys) -> None:
    """Of 50 conversations one would be too many, though it is one of a thousand."""
    good, bad = chat("one two", "three"), chat("the mat", "three")
    with ChatLoader([*[good] * 3, bad], foreign, 1, 60, part="validation part") as loader:
        while loader.epoch < 1:
            assert (next(loader)[1] >= 0).any()
        assert loader.describe()["refused"] == 1
    assert "; conversation 3 of the validation part: the chat template refuses" in capsys.readouterr().out


class Alone:
    """A template that takes an answer without a question."""

    def render(self, conversation: dict) -> tuple[list[int], list[int]]:
        assert len(conversation["messages"]) == 1
        return [5, 6, 7], [0, 1, 1]


def test_an_answer_alone_is_learned(tokenizer) -> None:
    found = Tokenizer(tokenizer.core)
    found.template = Alone()
    opening = {"messages": [{"role": "assistant", "content": "three"}]}
    assert fit_conversation(opening, found, 3) == (([5, 6, 7], [0, 1, 1]), False)
    assert fit_conversation(opening, found, 2) == (None, True)


def test_what_a_template_refuses_is_counted_over_the_whole_mixture(foreign) -> None:
    """One in a hundred may be, in whatever window they are; a mixture that is refused as a whole ends in the first."""
    good, bad = chat("one two", "three"), chat("the mat", "three")
    for count in (12, 13):
        with ChatLoader([*[good] * (1200 - count), *[bad] * count], foreign, 8, 60) as loader:
            if count == 12:
                while loader.epoch < 1:
                    next(loader)
                assert loader.describe()["refused"] == 12
            else:
                with pytest.raises(UserError, match=r"\(13 of [\d,]+ conversations are refused\)"):
                    list(islice(loader, 2000))
    with (
        ChatLoader([bad] * 100_000, foreign, 8, 60) as loader,
        pytest.raises(UserError, match=r"\(512 of 512 conversations are refused\)"),
    ):
        next(loader)


def test_best_fit_wastes_little_and_never_overfills() -> None:
    dice = np.random.default_rng(SEED)
    for _ in range(50):
        lengths = dice.integers(1, 101, size=dice.integers(1, 200)).tolist()
        rows = best_fit(lengths, 100)
        assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
        filled = [sum(lengths[number] for number in row) for row in rows]
        assert max(filled) <= 100
        # Of any two rows one is more than half full, or they would be one: the bound of the method.
        assert len(rows) <= 1.5 * max(1, sum(lengths) / 100) + 1


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("learned", [0, 1, 40])
def test_the_loss_of_answers_is_that_of_all_tokens(name, learned) -> None:
    """Only that tokens which are not learned get no logits."""
    model = lively(CONFIGS[name])
    ids = torch.arange(96).view(2, 48) * 7 % model.config.vocab_size
    targets = torch.full((96,), -1)
    targets[torch.randperm(96)[:learned]] = 5
    found = []
    rows = []
    for objective in (next_token, answer_tokens):
        with mock.patch("nanochat.gpt.cross_entropy", wraps=cross_entropy) as called:
            loss, count, _ = objective(model, (ids, targets.view(2, 48)))
        rows.append(called.call_args.args[0].flatten(0, -2).shape[0])
        loss.backward()
        gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        found.append((loss.detach(), count, gradients))
        model.zero_grad()
    assert rows == [96, max(1, learned)]
    assert found[0][1] == found[1][1] == learned
    assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-6)
    assert_close(found[1][2], found[0][2], rtol=1e-4, atol=1e-5)
