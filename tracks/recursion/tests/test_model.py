"""The recursive model: against the formulas written out, and what it promises about exits, gradients and caches."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from loop_parts import ALONE
from models import CONFIGS, leave_model, lively, tokens
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from nanochat.decoder import Decoder
from nanochat.gpt import GPTConfig
from nanochat.models import build_model, load_model
from nanochat.objectives import DeepSupervision, next_token, pretraining
from nanochat.scaling import flops_per_token
from nanochat.tokenizer import Tokenizer
from scripts.base_train import Config
from tracks.recursion.model import RecursiveGPT

SETTINGS = {"depth": 2, "supervision": 3, "loops": 2}


def rms(x):
    return F.rms_norm(x, x.shape[-1:], eps=2**-23)


def written_out(model, ids):
    """The logits at each exit, by the formulas in nanochat/recursive.py."""
    config, context = model.config, model.context(ids)
    layers = list(zip(model.blocks, model.layers(context), strict=True))
    x = y = context.x0
    z, found = 0 * x, []
    for step in range(config.supervision):
        for number in range(config.passes):
            y, z = (y, z) if number == 0 else (y.detach(), z.detach())
            for i, (block, layer) in enumerate(layers):
                for _ in range(config.loops):
                    z = z + block(rms(x + y + z), layer)
                y = y + block(rms(y + z), layer)
                if i == config.depth // 2:
                    middle = y
        found.append(model.logits(rms(y - model.backout_lambda * middle)))
        if step < config.detached:
            y, z = y.detach(), z.detach()
    return found


@pytest.mark.parametrize("name", ["recursive", "recursive passes"])
def test_every_exit_is_that_of_the_formulas(name):
    model, ids = lively(CONFIGS[name]), tokens()
    exits = [model.logits(hidden) for hidden in model.exits(ids)]
    assert len(exits) == 3
    expected = written_out(model, ids)
    gradients = []
    for logits in (exits, expected):
        model.zero_grad()
        sum(some.square().sum() for some in logits).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert_close((exits, gradients[0]), (expected, gradients[1]), atol=1e-3, rtol=1e-4)
    assert torch.equal(model(ids), exits[-1])
    model.steps = 1
    assert torch.equal(model(ids), exits[0])


def test_the_loss_is_the_seeds_formula():
    """Of one row: (Σ wᵢ·Lᵢ − s·Σ (Lᵢ₋₁ − Lᵢ)/Lᵢ₋₁) / exits, wᵢ = bⁱ/Σb; the earlier loss is a constant."""
    model, ids = lively(CONFIGS["recursive"]), tokens(1)
    targets = ids.roll(-1, dims=1)
    losses = [F.cross_entropy(logits[0], targets[0]) for logits in written_out(model, ids)]
    weights = torch.tensor([5.0**i for i in range(3)]) / 31
    expected = sum(w * loss for w, loss in zip(weights, losses, strict=True))
    expected = expected - 2 * sum((a.detach() - b) / a.detach() for a, b in pairwise(losses))
    expected = expected / 3
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    total, count, metrics = DeepSupervision(5.0, 2.0)(model, (ids, targets))
    (total / count).backward()
    assert_close(total / count, expected)
    assert_close([p.grad for p in model.parameters() if p.grad is not None], gradients)
    for i, loss in enumerate(losses):
        assert float(metrics[f"train/exit_{i}"][0] / count) == pytest.approx(loss.item(), rel=1e-5)
    refinement = metrics["train/refinement"]
    assert float(refinement[0] / refinement[1]) == pytest.approx(1 - (losses[2] / losses[0]).item(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("changes", [{}, {"passes": 2}, {"loops": 1, "supervision": 2}])
def test_flops_are_those_of_the_products(changes):
    """Against a count of the products as they run, attention aside: the formula takes all keys as seen."""
    shape = GPTConfig(vocab_size=128, width=64, heads=2, max_seq_len=32, bos_id=0, **SETTINGS | changes)
    model = build_model(shape, ALONE, 1)
    ids = torch.randint(128, (1, 32))
    with FlopCounterMode(display=False) as counter:
        loss, *_ = DeepSupervision(5.0, 1.0)(model, (ids, ids))
        loss.backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(
        number for operation, number in counts.items() if "mm" in str(operation) and "bmm" not in str(operation)
    )
    attention = 12 * 64 * 2 * 32 * (shape.loops + 1) * shape.supervision * (1 + (shape.passes - 1) / 3)
    assert products / 32 == pytest.approx(flops_per_token(model, 32) - attention, rel=0.01)


def test_presets():
    config = Config(recursion="extreme")
    assert (config.warmup_steps, config.grad_clip, config.matrix_lr) == (200, 1.0, 0.02)
    assert config.model_fields == {"supervision": 4, "loops": 2, "passes": 1, "detached": 0}
    assert pretraining(config) == DeepSupervision(10, 2)
    own = Config(recursion="extreme", supervision=2, warmup_steps=3)
    assert (own.supervision, own.warmup_steps, own.loops) == (2, 3, 2)
    assert (Config().model_fields, pretraining(Config())) == ({}, next_token)


def test_what_cannot_be_is_one_sentence():
    with pytest.raises(ValueError, match="--loops is for recursion: add --recursion=moderate"):
        Config(loops=3)
    with pytest.raises(ValueError, match="--detached=4 has to be below --supervision=4"):
        Config(recursion="extreme", detached=4)
    for name, sweeps in (("recursive", 2), ("looped", 0)):
        with pytest.raises(ValueError, match=f"sweeps={sweeps} "):
            lively({**CONFIGS[name], "sweeps": sweeps})


def test_other_numbers_of_exits_are_told(base, capsys, monkeypatch):
    tokenizer = Tokenizer.train(["a fox and a dog"], 300)
    for preset in ("recursive", "reference"):
        leave_model(base, "base_train", preset, tokenizer, preset=preset)
    model, _, _ = load_model("base_train", "recursive", -1, ALONE, exits=2)
    assert isinstance(model, RecursiveGPT)
    assert capsys.readouterr().out.endswith("recursion: 2 exits, trained with 3\n")
    assert model.steps == len(list(model.exits(tokens()))) == 2
    with pytest.raises(ValueError, match="--exits is for recursive models, and this model is none"):
        load_model("base_train", "reference", -1, ALONE, exits=2)
    monkeypatch.setattr("nanochat.decoder.free_memory", lambda device: 1e6)
    model.steps = 600
    decoder = Decoder(model)
    for _ in range(2):  # a second try meets the same
        with pytest.raises(
            ValueError, match=r"one row of 128 tokens needs 0.1 GB, 0.0 GB are free: take fewer --exits"
        ):
            decoder.make_room(1, 128)


@pytest.mark.parametrize("base", [1e200, 1.0, 0.0])
def test_any_base_weighs_the_exits(base):
    model, ids = lively(CONFIGS["recursive"]), tokens(1)
    total, _, metrics = DeepSupervision(base, 0.0)(model, (ids, ids))
    losses = torch.stack([metrics[f"train/exit_{i}"][0] for i in range(3)])
    expected = {1e200: losses[-1], 1.0: losses.mean(), 0.0: losses[0]}[base] / 3
    assert_close(total, expected)


def test_a_looped_model_is_the_stack_over_and_over():
    model, ids = lively(CONFIGS["looped"]), tokens()
    context = model.context(ids)
    x = context.x0
    for _ in range(3):
        x = model.sweep(x, context)
    assert torch.equal(model(ids), model.logits(x))
    plain = lively({**CONFIGS["looped"], "sweeps": 1})
    blocks = 6 * sum(p.numel() for p in plain.blocks.parameters() if p.ndim == 2)
    more = flops_per_token(model, 512) - flops_per_token(plain, 512)
    keys = sum(window or 512 for window in plain.config.windows)
    assert more == 2 * (blocks + 12 * 64 * keys)
