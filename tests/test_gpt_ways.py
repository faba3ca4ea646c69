"""The model in half precision, with recomputation, compiled, with caches: always the same model. For every config."""

import dataclasses

import pytest
import torch
from models import CONFIGS, SMALL, lively, tokens
from torch._dynamo.utils import counters
from torch.testing import assert_close

from nanochat import attention, gpt
from nanochat.decoder import KVCache
from nanochat.fused import pack
from nanochat.gpt import PARAMETERS, GPTConfig, parameter_row
from nanochat.param_groups import RULES


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in CONFIGS), ("reference", torch.float16)]
)
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


def gradients(model, ids):
    model.zero_grad()
    loss = model(ids, ids)
    (loss / ids.numel()).backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


@pytest.mark.parametrize(
    ("backend", "pattern", "kinds"),
    # The compiler itself takes minutes; runs of base_train compile with it by default.
    [pytest.param("inductor", "L", 2, marks=pytest.mark.slow), ("eager", "SSSL", 3)],
)
def test_compiled_blocks_agree_and_deeper_models_need_no_more_graphs(backend, pattern, kinds):
    """A graph for each kind of layer: with values or without, with a short window or a long one."""
    torch.compiler.reset()
    counters.clear()
    for depth in (4, 8):
        fields = {**SMALL, "depth": depth, "window_pattern": pattern}
        model, ids = lively(fields), tokens(1, 160)
        for block in model.blocks:
            block.compile(backend=backend)
        assert_close(gradients(model, ids), gradients(lively(fields), ids), atol=1e-5, rtol=1e-3)
        assert counters["stats"]["unique_graphs"] == kinds


# One other value for each field that changes the model; bool fields are switched. A new field fails until it is here.
OTHER_VALUES = {
    "kv_heads": 4,
    "mlp": "swiglu",
    "mlp_ratio": 2.0,
    "window_pattern": "L",
    "rope_base": 10_000.0,
    "rope_dims": 8,
    "qk_scale": 1.0,
    "query_gain": 1.5,
    "qk_eps": 0.1,
    "exclusive_last": 2,
    "softcap": 0.0,
    "bos_id": -1,
    "supervision": 2,
    "loops": 1,
    "passes": 2,
    "detached": 1,
    "sweeps": 2,
}
SIZES = {"vocab_size", "depth", "width", "heads", "max_seq_len"}
INITIAL = {"orthogonal"}  # changes the first weights alone
FIELDS = [field for field in dataclasses.fields(GPTConfig) if field.name not in SIZES | INITIAL]


def usual_for(field: dataclasses.Field):
    """Return the small config, recursive if the field is about recursion."""
    return {**SMALL, "supervision": 2} if field.name in ("loops", "passes", "detached") else SMALL


def switched(field: dataclasses.Field):
    """Return the small config with another value of the field."""
    value = not field.default if isinstance(field.default, bool) else OTHER_VALUES[field.name]
    return {**usual_for(field), field.name: value}


@pytest.fixture(params=FIELDS, ids=lambda field: field.name)
def field(request):
    return request.param


def test_every_field_acts(field):
    ids = tokens()
    usual, other = lively(usual_for(field)), lively(switched(field))
    kept = {name: value for name, value in usual.state_dict().items() if name in other.state_dict()}
    if field.name not in ("mlp_ratio", "kv_heads"):  # the same shapes: then only the field differs
        other.load_state_dict(kept, strict=False)
    if field.name == "detached":
        assert not torch.allclose(gradients(usual, ids)["embed.weight"], gradients(other, ids)["embed.weight"])
    else:
        assert (usual(ids) - other(ids)).abs().max() > 1e-3


def test_every_field_trains_with_and_without_checkpointing_and_is_known_to_inference(field):
    """A gradient reaches every parameter, and recomputation changes none."""
    ids = tokens()
    usual = gradients(lively(switched(field)), ids)
    assert all(value.any() for value in usual.values())
    again = gradients(lively(switched(field), checkpointing=True), ids)
    assert_close(again, usual, atol=1e-5, rtol=1e-4)
    assert_decoding_is_the_full_pass(switched(field))


def test_every_row_of_parameters_is_used():
    models = [lively({**SMALL, "mlp": "swiglu"}), *(lively(switched(field)) for field in FIELDS)]
    rows = {parameter_row(name) for model in models for name, _ in model.named_parameters()}
    assert rows == set(PARAMETERS)
    assert {row.group for row in PARAMETERS} == {rule.name for rule in RULES}


def test_every_field_keeps_its_promise_about_scores(field, monkeypatch):
    """Where scores_are_bounded, no value of the learned factors brings a score above the bound."""
    model = lively(switched(field))
    config = model.config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter_row(name).group != "matrices":
                parameter *= 50
    largest = []

    def watched(q, k, v, mask, scale):
        group = q.shape[2] // k.shape[2]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, dim=2)) * scale
        largest.append(float(scores.abs().max()))
        return attention.attend(q, k, v, mask, scale)

    monkeypatch.setattr(gpt, "attend", watched)
    model(tokens())
    holds = max(largest) <= config.attention_scale * config.head_dim * (1 + 1e-5)
    assert holds == config.scores_are_bounded


@torch.no_grad()
def assert_decoding_is_the_full_pass(fields, path="sdpa", dtype=torch.float32, bound=2e-6, steps=0):
    """Prompts of unequal lengths at once, then token by token past the short window, packed for inference."""
    model, ids = lively(fields), tokens(3, 150)
    if steps:
        model.steps = steps
    exact = model(ids)
    model.compute_dtype = dtype
    packed = pack(model)
    packed.attention = path
    cache = KVCache(model, 3, 192)
    lengths = torch.tensor([[100], [60], [1]])
    packed.hidden(ids[:, :100], cache=cache.prompts(torch.arange(3)))  # what follows a shorter prompt is padding
    for step in range(50):
        positions = lengths + step
        previous = ids.gather(1, (positions - 1).clamp(min=0))
        view = cache.next_tokens(positions, previous, 192)
        ours = packed.logits(packed.hidden(ids.gather(1, positions), cache=view))
        assert ours.dtype == torch.float32
        expected = exact[torch.arange(3)[:, None], positions]
        assert (ours - expected).norm() < bound * expected.norm() * 3


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.03)])
def test_decoding_is_the_full_pass(name, dtype, bound):
    assert_decoding_is_the_full_pass(CONFIGS[name], "decode", dtype, bound)


@pytest.mark.parametrize("name", ["recursive", "recursive passes"])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_cache_has_keys_for_every_application_at_any_number_of_steps(name, steps):
    assert_decoding_is_the_full_pass(CONFIGS[name], "decode", bound=5e-6, steps=steps)


@pytest.mark.gpu
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
