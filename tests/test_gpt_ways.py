"""The model in half precision, with recomputation, compiled, with caches: always the same model. For every config."""

from functools import partial

import pytest
import torch
from model_checks import (
    check_bound_of_scores,
    check_decoding,
    check_half_precision,
    check_rows,
    check_that_it_acts,
    check_training_and_inference,
    each_case,
    field_cases,
    gradients,
)
from models import CONFIGS, SMALL, lively, tokens
from torch._dynamo.utils import counters
from torch.testing import assert_close

from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionConfig, InductionGPT


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in CONFIGS), ("reference", torch.float16)]
)
def test_half_precision_is_close_and_gradients_are_fp32(name, dtype) -> None:
    check_half_precision(CONFIGS[name], dtype)


@pytest.mark.parametrize(
    ("backend", "pattern", "kinds"),
    # The compiler itself takes minutes; runs of base_train compile with it by default.
    [pytest.param("inductor", "L", 2, marks=pytest.mark.slow), ("eager", "SSSL", 3)],
)
def test_compiled_blocks_agree_and_deeper_models_need_no_more_graphs(backend, pattern, kinds) -> None:
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


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_ends_agree_and_take_two_graphs(backend, dtype, monkeypatch) -> None:
    """What comes before and after the blocks, which a GPU runs compiled."""
    torch.compiler.reset()
    counters.clear()
    ids, (model, twin) = tokens(2, 60), (lively(SMALL), lively(SMALL))
    model.compute_dtype = twin.compute_dtype = dtype
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model.compile_ends()
    for _ in range(2):
        bound = 1e-5 if dtype == torch.float32 else 0.02
        assert_close(gradients(model, ids), gradients(twin, ids), atol=bound, rtol=bound)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


# One other value for each field that changes the model; bool fields are switched. A new field fails until it is here.
OTHER_VALUES = {
    "kv_heads": 4,
    "mlp": "swiglu",
    "mlp_ratio": 2.0,
    "window_pattern": "L",
    "rope_base": 10_000.0,
    "qk_scale": 1.0,
    "softcap": 0.0,
    "bos_id": -1,
}
SIZES = {"vocab_size", "depth", "width", "heads", "max_seq_len"}
# Those of GPTConfig, and that of induction.
CASES = field_cases(InductionConfig, SIZES, OTHER_VALUES)


@each_case(CASES)
def test_every_field_acts(case) -> None:
    check_that_it_acts(case, same_shapes=case.name not in ("mlp_ratio", "kv_heads"))


@each_case(CASES)
def test_every_field_trains_with_and_without_checkpointing_and_is_known_to_inference(case) -> None:
    check_training_and_inference(case)


@each_case(CASES)
def test_every_field_keeps_its_promise_about_scores(case, monkeypatch) -> None:
    check_bound_of_scores(case, monkeypatch)


def test_every_row_of_parameters_is_used() -> None:
    plain = [lively({**SMALL, "mlp": "swiglu"}), *(lively(case.switched) for case in CASES if case.name != "induction")]
    check_rows(GPT, plain)
    check_rows(InductionGPT, [lively({**SMALL, "induction": True, "mlp": "swiglu"})])


def test_a_model_has_the_config_of_its_kind() -> None:
    with pytest.raises(AssertionError, match="another config"):
        GPT(InductionConfig())
    with pytest.raises(AssertionError, match="another config"):
        InductionGPT(GPTConfig())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.03)])
def test_decoding_is_the_full_pass(name, dtype, bound) -> None:
    check_decoding(CONFIGS[name], "decode", dtype, bound)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["sdpa", "flex"])
def test_compiled_on_a_gpu_agrees_with_the_twin_on_a_cpu(path) -> None:
    ids, fields = tokens(), {**SMALL, "width": 256}  # heads of 64
    model = lively(fields, attention=path).cuda()
    model.compute_dtype = torch.bfloat16
    for block in model.blocks:
        block.compile()
    ours, twin = gradients(model, ids.cuda()), gradients(lively(fields, attention="twin"), ids)
    for name, expected in twin.items():
        assert (ours[name].cpu() - expected).norm() < 0.1 * expected.norm(), name
