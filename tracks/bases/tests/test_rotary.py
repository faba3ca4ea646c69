"""Rates of rotation beside those of `transformers`."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tracks.bases.rotary import SCALINGS, ScaledRotary, Scaling, rates_of
from tracks.bases.tests.public_models import LINEAR, LLAMA3

CASES = {
    "default": (Scaling(), {"rope_type": "default", "rope_theta": 10_000.0}),
    "linear": (Scaling("linear", factor=4.0), LINEAR),
    "llama3": (Scaling("llama3", 8.0, 1.0, 4.0, 8192), LLAMA3),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_rates(kind: str) -> None:
    scaling, parameters = CASES[kind]
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=512, rope_parameters=parameters
    )
    if kind == "default":
        expected = LlamaRotaryEmbedding(config).inv_freq
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        assert factor == 1
    found = rates_of(32, parameters["rope_theta"], scaling)
    assert torch.equal(found, expected)
    table = ScaledRotary(512, 64, parameters["rope_theta"], scaling)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(512)[None])
    assert torch.equal(table.cos, cos[0, :, :32])
    assert torch.equal(table.sin, sin[0, :, :32])


def test_a_table_is_filled_again() -> None:
    """A model is made without memory first."""
    scaling = Scaling("linear", factor=2.0)
    plain = ScaledRotary(8, 4, 10.0, scaling)
    with torch.device("meta"):
        table = ScaledRotary(8, 4, 10.0, scaling)
    table.to_empty(device="cpu")
    table.fill()
    torch.testing.assert_close(table.cos, plain.cos, rtol=0, atol=0)
    torch.testing.assert_close(plain.sin[3, 0], torch.tensor(1.5).sin(), rtol=0, atol=0)
