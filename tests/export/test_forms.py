"""Which settings have a home in which architecture, none forgotten; and what becomes of the weights."""

import dataclasses

import pytest
import torch
from models import CONFIGS, lively

from nanochat.export.forms import FORMS, form_of, homeless, settings, swap_halves, weights
from nanochat.gpt import GPTConfig
from nanochat.layers import rotate

NANOCHAT, QWEN3 = FORMS.values()
SPECIAL = {"<|bos|>": 90, "<|assistant_end|>": 94}


def config(name, **fields) -> GPTConfig:
    return GPTConfig(**{**CONFIGS[name], **fields})


def test_every_setting_of_the_model_is_known_to_be_carried_or_refused():
    """Who adds one to the model has to say here what exports make of it."""
    names = {field.name for field in dataclasses.fields(GPTConfig)}
    for form in FORMS.values():
        assert not form.carries & form.only.keys()
        assert form.carries <= names
        assert form.only.keys() <= names
    for name in names - {"vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id"}:
        assert any(name in form.carries or name in form.only for form in FORMS.values()), name


def test_a_setting_that_nobody_knows_has_no_home():
    made = dataclasses.make_dataclass("Novel", [("novelty", int, 3)], bases=(GPTConfig,), frozen=True)
    assert homeless(made(**CONFIGS["portable"]), QWEN3) == ["novelty=3"]


@pytest.mark.parametrize(
    ("name", "fields", "lost", "form"),
    [
        ("october-2025", {}, [], NANOCHAT),
        ("october-2025", {"softcap": 0.0, "tie_embeddings": True, "norm_eps": 1e-5, "rope_base": 5e5}, [], NANOCHAT),
        ("october-2025", {"rope_dims": 16}, [], NANOCHAT),  # all of them
        ("october-2025", {"rope_dims": 8, "qk_norm": False}, ["rope_dims=8", "qk_norm=False"], NANOCHAT),
        ("october-2025", {"window_pattern": "S"}, ["window_pattern=S"], NANOCHAT),
        ("october-2025", {"window_pattern": "S", "max_seq_len": 128}, [], NANOCHAT),  # which leaves no short window
        ("october-2025", {"embed_norm": False, "qk_scale": 1.1}, ["qk_scale=1.1", "embed_norm=False"], NANOCHAT),
        ("october-2025", {"smear": True}, ["smear=True", "bos_id=3"], NANOCHAT),
        ("portable", {"embed_norm": False, "qk_scale": 1.1, "mlp_ratio": 2.0}, [], QWEN3),
        ("portable", {"softcap": 15.0, "qk_gain": True}, ["qk_gain=True", "softcap=15.0"], QWEN3),
        ("portable", {"value_embeds": True, "backout": True}, ["value_embeds=True", "backout=True"], QWEN3),
    ],
)
def test_what_has_no_home(name, fields, lost, form):
    assert homeless(config(name, **fields), form) == lost


def test_each_architecture_says_what_it_lacks():
    assert form_of(config("october-2025")) == "NanoChatForCausalLM"
    assert form_of(config("portable")) == "Qwen3ForCausalLM"
    with pytest.raises(ValueError, match="cannot be exported") as caught:
        form_of(config("reference"))
    said = str(caught.value)
    shared = "residual_lambdas=True, x0_lambdas=True, value_embeds=True, smear=True, backout=True, bos_id=3"
    assert f"NanoChatForCausalLM has no place for window_pattern=SSSL, qk_scale=1.2, {shared}; " in said
    assert f"Qwen3ForCausalLM has no place for mlp=relu2, window_pattern=SSSL, softcap=15.0, {shared}. " in said
    assert said.endswith("--model=october-2025 or --model=portable")
    with pytest.raises(ValueError, match=r"place for mlp=relu2, softcap=15.0. .* --model=portable$"):
        form_of(config("october-2025"), ["Qwen3ForCausalLM"])


def test_halves_exchanged_turn_the_other_way():
    """Scores of two tokens depend on how far they turn apart: with halves exchanged, turned by minus the position."""
    head, width = 8, 24
    q, k = torch.randn(2, 3 * head, width, dtype=torch.float64)
    x = torch.randn(1, 5, width, dtype=torch.float64)
    angles = torch.outer(torch.arange(5), 0.3 ** torch.arange(head // 2))[:, None].double()

    def scores(q, k, angles):
        turned = [rotate((x @ w.T).unflatten(-1, (3, head)).float(), angles.cos(), angles.sin()) for w in (q, k)]
        return torch.einsum("bihd,bjhd->bhij", *turned)

    ours = scores(q, k, angles)
    torch.testing.assert_close(scores(swap_halves(q, head), swap_halves(k, head), -angles), ours)
    assert (scores(q, k, -angles) - ours).abs().max() > 0.1
    assert torch.equal(swap_halves(swap_halves(q, head), head), q)


def test_padding_stays_behind_and_the_norm_goes_into_the_embedding():
    model = lively(CONFIGS["portable"] | {"tie_embeddings": True})
    found, about = dict(weights(model, QWEN3)), settings(model, QWEN3, SPECIAL)
    embedding = found["model.embed_tokens.weight"]
    assert embedding.shape == (100, 64)
    torch.testing.assert_close(embedding.square().mean(-1), torch.ones(100), atol=1e-3, rtol=0)
    assert torch.equal(found["lm_head.weight"], model.embed.weight[:100])
    assert about["tie_word_embeddings"] is False  # for now they differ
    assert settings(model, NANOCHAT, SPECIAL)["tie_word_embeddings"] is True
    assert about["vocab_size"] == 100
    assert "final_logit_softcapping" not in about
    assert set(found["model.layers.3.self_attn.q_norm.weight"].tolist()) == {1.0}
