"""The model run in half precision, with recomputation, compiled, with a cache: always the same model."""

import itertools

import pytest
import torch
from models import CONFIGS, SMALL, lively, tokens
from torch._dynamo.utils import counters

from nanochat.before import shifted
from nanochat.gpt import GPT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONFIGS)
def test_half_precision_is_close_and_gradients_are_fp32(name, dtype):
    model, ids = lively(CONFIGS[name]), tokens()
    exact, loss = model(ids), model(ids, ids)
    model.compute_dtype = dtype
    assert model.hidden(ids).dtype == dtype
    assert (model(ids) - exact).norm() < 20 * torch.finfo(dtype).eps * exact.norm()
    ours = model(ids, ids)
    assert ours.item() == pytest.approx(loss.item(), rel=2 * torch.finfo(dtype).eps)
    (ours / 400).backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_norms_hold_where_squares_do_not():
    model, ids = lively({**SMALL, "embed_norm": False}), tokens()
    model.compute_dtype = torch.float16
    with torch.no_grad():
        model.embed.weight *= 3000  # its squares are beyond fp16
    assert model.hidden(ids).isfinite().all()


def gradients(model, ids):
    model.zero_grad()
    loss = model(ids, ids)
    (loss / ids.numel()).backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def test_every_parameter_learns():
    for name, fields in CONFIGS.items():
        assert all(value.any() for value in gradients(lively(fields), tokens()).values()), name


@pytest.mark.parametrize("other", [{"checkpointing": True}, {"attention": "chunks"}, {"attention": "twin"}], ids=str)
def test_other_ways_give_the_same_gradients(other):
    ids = tokens()
    torch.testing.assert_close(
        gradients(lively(SMALL, **other), ids), gradients(lively(SMALL), ids), atol=1e-5, rtol=1e-4
    )


def test_checkpointing_keeps_less():
    def kept(model):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model(tokens(), tokens())
        return sum(sizes)

    assert kept(lively(SMALL, checkpointing=True)) < 0.5 * kept(lively(SMALL))


@pytest.mark.parametrize(("backend", "pattern", "kinds"), [("inductor", "L", 2), ("eager", "SSSL", 3)])
def test_compiled_blocks_agree_and_deeper_models_need_no_more_graphs(backend, pattern, kinds):
    """A graph for each kind of layer: with values or without, with a short window or a long one."""
    torch.compiler.reset()
    counters.clear()
    for depth in (4, 8):
        fields = {**SMALL, "depth": depth, "window_pattern": pattern}
        model, ids = lively(fields), tokens(1, 160)
        for block in model.blocks:
            block.compile(backend=backend)
        torch.testing.assert_close(gradients(model, ids), gradients(lively(fields), ids), atol=1e-5, rtol=1e-3)
        assert counters["stats"]["unique_graphs"] == kinds


class Cache:
    """Keys and values of each row at their positions; `given` of the tokens handed over are real, the rest padding."""

    def __init__(self, model: GPT, rows: int, capacity: int):
        config = model.config
        shape = (rows, capacity, config.kv_heads, config.head_dim)
        self.capacity, self.shifted_heads = capacity, config.shifted_heads
        self.layers = [Layer(self, shape) for _ in range(config.depth)]
        self.lengths = torch.zeros(rows, 1, dtype=torch.long)
        self.previous = torch.zeros(rows, 1, dtype=torch.long)

    def decode(self, model: GPT, ids, given):
        """Logits of a chunk (rows, T), of which row b's first given[b] count."""
        self.positions = (self.lengths + torch.arange(ids.shape[1])).clamp(max=self.capacity - 1)
        logits = model.logits(model.hidden(ids, cache=self))
        self.lengths += given
        self.previous = torch.where(given > 0, ids.gather(1, (given - 1).clamp(min=0)), self.previous)
        return logits


class Layer:
    def __init__(self, cache: Cache, shape):
        self.cache, self.keys, self.values = cache, torch.full(shape, 9.0), torch.full(shape, 9.0)  # 9: never written

    def update(self, k, v):
        rows = torch.arange(len(k))[:, None]
        self.keys[rows, self.cache.positions], self.values[rows, self.cache.positions] = k, v
        return shifted(self.keys, self.cache.shifted_heads), self.values


@pytest.mark.parametrize("path", ["sdpa", "chunks", "twin", "flex", "decode"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_decoding_with_a_cache_is_the_full_pass(name, path):
    """Three rows of unequal lengths, in chunks of unequal lengths, then token by token."""
    if path == "flex" and name != "reference":
        pytest.skip("flex runs its slow plain form here: once is enough")
    model, ids = lively(CONFIGS[name], attention=path), tokens(3, 170)
    full = lively(CONFIGS[name])(ids)
    cache, done = Cache(model, 3, 200), torch.zeros(3, 1, dtype=torch.long)
    counts = [
        [140, 66, 1],
        [9, 30, 0],
        [1, 1, 1],
        [1, 1, 1],
        [0, 1, 1],
    ]  # 66: the row stops short of a document's start
    for given in torch.tensor(counts)[..., None]:
        chunk = torch.full((3, int(given.max())), 50)  # padding
        for row in range(3):
            chunk[row, : given[row]] = ids[row, done[row] : done[row] + given[row]]
        logits = cache.decode(model, chunk, given)
        for row in range(3):
            expected = full[row, done[row] : done[row] + given[row]]
            torch.testing.assert_close(logits[row, : given[row]], expected, atol=2e-4, rtol=1e-4)
        done += given


def test_a_cache_beyond_the_tables_is_refused():
    model = lively(SMALL)
    with pytest.raises(ValueError, match="513 positions are more than the model's max_seq_len"):
        Cache(model, 1, 513).decode(model, tokens(1, 5), torch.tensor([[5]]))


@pytest.mark.parametrize("path", ["sdpa", "chunks", "twin", "flex"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_branches_of_a_trunk_are_texts_of_their_own(name, path):
    """Rows of 3, 2 and no branches behind trunks of unequal lengths, one longer than the window, one only <|bos|>."""
    model, plain, texts = lively(CONFIGS[name], attention=path), lively(CONFIGS[name]), tokens(3, 700)[:, :500]
    layout = [(150, [140, 1, 33]), (1, [170, 9]), (260, [])]
    ids, starts = torch.full((2, 3, 330), 0)
    for row, (trunk, branches) in enumerate(layout):
        ends = [trunk + sum(branches[:k]) for k in range(len(branches) + 1)]
        ids[row, : ends[-1]] = texts[row, : ends[-1]]
        for start, end in itertools.pairwise(ends):
            starts[row, start:end] = start
    hidden = model.hidden(ids, starts, trunks=torch.tensor([[trunk] for trunk, _ in layout]))
    for row, (trunk, branches) in enumerate(layout):
        end = trunk
        for branch in branches or [0]:
            whole = torch.cat([ids[row, :trunk], ids[row, end : end + branch]])
            ours = torch.cat([hidden[row, :trunk], hidden[row, end : end + branch]])
            torch.testing.assert_close(ours, plain.hidden(whole[None])[0], atol=1e-4, rtol=1e-4)
            end += branch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("path", ["sdpa", "flex"])
def test_compiled_on_a_gpu_agrees_with_the_twin_on_a_cpu(path):
    ids, fields = tokens(), {**SMALL, "width": 256}  # heads of 64
    model = lively(fields, attention=path).cuda()
    model.compute_dtype = torch.bfloat16
    for block in model.blocks:
        block.compile()
    ours, twin = gradients(model, ids.cuda()), gradients(lively(fields, attention="twin"), ids)
    for name, expected in twin.items():
        assert (ours[name].cpu() - expected).norm() < 0.1 * expected.norm(), name
