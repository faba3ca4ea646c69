"""The decoder: KV cache, sampling, the state of rows, and rows that stand still."""

import numpy as np
import pytest
import torch
from models import SMALL, lively

from nanochat.decoder import Decoder, StepKind, sample_tokens
from nanochat.fused import pack


def test_draws_follow_the_probabilities():
    """Over an even grid of the numbers that are drawn, each token comes as often as is likely."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)) * 2
    many = 20_000
    grid = (torch.arange(many, dtype=torch.float64)[:, None] + 0.5) / many
    column = lambda value: torch.full((many, 1), value)  # noqa: E731
    for top_k, top_p, ranks in [(50, 1.0, 0), (50, 1.0, 8), (4, 1.0, 4), (50, 0.7, 50), (9, 0.5, 16), (1, 1.0, 1)]:
        drawn = sample_tokens(logits.expand(many, -1), grid, column(0.8), column(top_k), column(top_p), ranks)
        chances = (logits[0].double() / 0.8).softmax(0)
        ranked, order = chances.sort(descending=True)
        ranked[top_k:] = 0
        ranked /= ranked.sum()
        ranked[ranked.cumsum(0) - ranked >= top_p] = 0
        expected = torch.zeros(50, dtype=torch.float64).index_copy(0, order, ranked / ranked.sum())
        share = torch.bincount(drawn.flatten(), minlength=50) / many
        torch.testing.assert_close(share.double(), expected, atol=1.1 / many, rtol=0)


def row(tokens, last, halting=frozenset()):
    """Return the start of a greedy row."""
    start = {"token": tokens[-1], "previous": tokens[-2:][0], "position": len(tokens) - 1, "last": last}
    sampling = {"temperature": 0.0, "top_k": 100, "top_p": 1.0, "uniform": np.zeros(last - len(tokens) + 1)}
    return {**start, **sampling, "halting": halting}


def decoder_of(slots=3, length=64):
    decoder = Decoder(pack(lively(SMALL)))
    assert decoder.make_room(slots, length) == slots
    return decoder


def run(decoder, steps, rows=1):
    return torch.stack([decoder.step(rows, 60, StepKind())[0][0] for _ in range(steps)]).T.tolist()


@torch.inference_mode()
def test_a_row_stands_still_where_it_halts_and_goes_on_as_if_it_never_had():
    prompt = [3, 50, 60, 70]
    free, halted = decoder_of(), decoder_of()
    free.prefill({0: prompt})
    free.seat([0], [row(prompt, 40)])
    [expected] = run(free, 12)
    halted.prefill({0: prompt})
    halted.seat([0], [row(prompt, 40, halting={expected[4]})])
    first = expected.index(expected[4]) + 1
    [given] = run(halted, first + 2)
    assert given == [*expected[:first], -1, -1]
    halted.state["halting"].zero_()
    halted.resume(0, 4 + first, [])
    [rest] = run(halted, 12 - first)
    assert rest == expected[first:]


@torch.inference_mode()
def test_forced_tokens_stand_where_they_are_put_and_the_rest_follows_from_them():
    prompt = [3, 50, 60]
    decoder, known = decoder_of(), decoder_of()
    decoder.seat([0], [row(prompt[:1], 30)])
    decoder.resume(0, 1, [50, 60, 9, 8])
    [given] = run(decoder, 10)
    assert given[:4] == [50, 60, 9, 8]
    known.prefill({0: [*prompt, 9, 8]})
    known.seat([0], [row([*prompt, 9, 8], 30)])
    assert run(known, 6)[0] == given[4:]


@torch.inference_mode()
def test_a_row_ends_at_its_last_position_and_can_be_moved():
    prompts = {0: [3, 50, 60], 1: [3, 40], 2: [3]}
    whole, moved = decoder_of(), decoder_of()
    for decoder in (whole, moved):
        decoder.prefill(prompts)
        decoder.seat([0, 1, 2], [row(prompt, 12) for prompt in prompts.values()])
    expected = run(whole, 14, rows=3)
    assert [tokens.index(-1) for tokens in expected] == [10, 11, 12]
    run(moved, 5, rows=3)
    moved.move(2, 0, 6)
    assert run(moved, 9, rows=2) == [expected[2][5:], expected[1][5:]]


@torch.inference_mode()
def test_room_grows_and_is_kept():
    decoder = decoder_of(2, 64)
    store = decoder.cache.store
    assert decoder.make_room(1, 10) == 1
    assert decoder.cache.store is store
    decoder.make_room(1, 70)
    assert (decoder.cache.slots, decoder.cache.length) == (2, 96)
    decoder.make_room(3, 512)
    assert (decoder.cache.slots, decoder.cache.length) == (3, 512)


@torch.inference_mode()
def test_where_memory_is_short_there_are_fewer_slots(monkeypatch):
    decoder = Decoder(pack(lively(SMALL)))
    slot = decoder_of(1, 64).cache.store.nbytes
    monkeypatch.setattr("nanochat.decoder.free_memory", lambda device: 9 * slot)  # half of it takes 4
    assert decoder.make_room(32, 64) == 4
    store = decoder.cache.store
    assert [decoder.make_room(32, 64), decoder.make_room(3, 20)] == [4, 3]
    assert decoder.cache.store is store


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@torch.inference_mode()
def test_graphs_step_as_the_steps_they_were_made_of():
    prompts = {0: [3, 50, 60], 1: [3, 40], 2: [3]}
    model = lively(SMALL).requires_grad_(False)
    given = {}
    for device in ("cpu", "cuda"):
        decoder = Decoder(pack(model.to(device)))
        decoder.make_room(3, 64)
        decoder.prefill(prompts)
        decoder.seat([0, 1, 2], [row(prompt, 40) for prompt in prompts.values()])
        given[device] = []
        for _ in range(30):
            (tokens, logprobs), done = decoder.step(3, 40, StepKind(logprobs=True))
            if done is not None:
                done.synchronize()
            given[device].append(tokens.tolist())
            assert (logprobs <= 0).all()
    assert given["cpu"] == given["cuda"]
    assert decoder.graphs[3, 64, StepKind(logprobs=True)] is not None
