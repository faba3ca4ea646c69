"""The slot cache: what is put in comes back at its place, of its slot alone."""

import torch
from models import SMALL

from nanochat.gpt import GPTConfig
from nanochat.kvcache import KVCache

CONFIG = GPTConfig(**SMALL)  # 4 layers, 2 heads of 16 for keys and values


def drawn(rows, length, seed=2):
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, length, 2, 16, generator=generator) for _ in range(2)]


def cache_of(slots=5, length=12):
    return KVCache(CONFIG, slots, length, torch.float32, torch.device("cpu"))


def held(cache, layer, slot, length):
    """(keys, values), each (length, kv_heads, head_dim)."""
    return [part[slot, :, :length].transpose(0, 1) for part in cache.store[layer]]


def test_prompts_fill_their_slots():
    cache, slots = cache_of(), torch.tensor([3, 0])
    view = cache.filling(slots, 7)
    assert view.capacity == 7
    assert view.positions.tolist() == [list(range(7))]
    assert view.previous.shape == (2, 1)
    k, v = drawn(2, 7)
    given = view.layers[2].update(k, v)
    assert torch.equal(given[0], k)
    assert torch.equal(given[1], v)
    for row, slot in enumerate((3, 0)):
        for mine, part in zip(held(cache, 2, slot, 7), (k, v), strict=True):
            assert torch.equal(mine, part[row])
    assert cache.store.count_nonzero() == 2 * k.numel()


def test_rows_grow_each_at_its_position():
    cache = cache_of()
    prompts = drawn(3, 6)
    cache.filling(torch.arange(3), 6).layers[1].update(*prompts)
    positions = torch.tensor([[6], [2], [0]])  # the second and third were shorter: what is there is padding
    previous = torch.tensor([[1], [2], [3]])
    view = cache.growing(positions, previous, 8)
    assert (view.capacity, view.positions, view.previous) == (8, positions, previous)
    tokens = drawn(3, 1, seed=4)
    for seen, prompt, token in zip(view.layers[1].update(*tokens), prompts, tokens, strict=True):
        assert seen.shape == (3, 8, 2, 16)
        for row, at in enumerate((6, 2, 0)):
            assert torch.equal(seen[row, at], token[row, 0])
            assert torch.equal(seen[row, :at], prompt[row, :at])
    assert not cache.store[[0, 2, 3]].any()  # other layers
    assert not cache.store[1, :, 3:].any()  # other slots


def test_a_prompt_is_copied_into_many_slots():
    cache = cache_of()
    for layer in range(4):
        cache.filling(torch.tensor([2]), 9).layers[layer].update(*drawn(1, 9, seed=layer))
    cache.copy(2, [0, 4], 5)
    for layer in range(4):
        for slot in (0, 4):
            for copy, source in zip(held(cache, layer, slot, 12), held(cache, layer, 2, 12), strict=True):
                assert torch.equal(copy[:5], source[:5])
                assert not copy[5:].any()
    assert not cache.store[:, :, [1, 3]].any()


def test_its_size_is_as_said():
    cache = cache_of()
    assert cache.store.nbytes == 5 * KVCache.slot_bytes(CONFIG, 12, torch.float32)
    assert KVCache.slot_bytes(CONFIG, 12, torch.bfloat16) == 4 * 2 * 2 * 16 * 12 * 2
