"""What every model has to keep, as checks for the fields of a config. Tests of a track try its kinds of model too."""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from models import SMALL, lively, model_for, tokens
from torch import Tensor
from torch.testing import assert_close

from nanochat import attention, gpt, quant
from nanochat.decoder import KVCache
from nanochat.evals.chat import last_logits
from nanochat.fused import copy_weights, pack
from nanochat.gpt import GPT
from nanochat.int8 import keep_int8
from nanochat.param_groups import RULES
from nanochat.tokenizer import Tokenizer

Fields = Mapping[str, Any]


def gradients(model: GPT, ids: Tensor) -> dict[str, Tensor]:
    """The loss, and the gradient of each parameter."""
    model.zero_grad()
    loss = model(ids, ids)
    (loss / ids.numel()).backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


# ---- a configuration ----


def check_half_precision(fields: Fields, dtype: torch.dtype) -> None:
    """It is close to fp32, and gradients are fp32."""
    model, ids = lively(fields), tokens()
    exact, loss = model(ids), model(ids, ids)
    model.compute_dtype = dtype
    assert model.hidden(ids).dtype == dtype
    assert (model(ids) - exact).norm() < 20 * torch.finfo(dtype).eps * exact.norm()
    ours = model(ids, ids)
    assert ours.item() == pytest.approx(loss.item(), rel=2 * torch.finfo(dtype).eps)
    (ours / 400).backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def check_causality(fields: Fields) -> None:
    """No token sees a later one."""
    model, ids = lively(fields), tokens()
    before = model(ids)
    for place in (1, 130, 199):
        changed = ids.clone()
        changed[:, place] = 4 + (changed[:, place] + 1) % 90
        after = model(changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert ((after[:, place:] - before[:, place:]).abs().amax(dim=(0, 2)) > 0)[:2].all()


@torch.no_grad()
def check_decoding(
    fields: Fields,
    path: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    bound: float = 2e-6,
    exits: int = 0,
    plan: str = "",
) -> None:
    """Prompts of unequal lengths at once, then token by token past the short window, packed, are the full pass.

    plan: of rounding; the full pass has the rounded weights in fp32, the packed model their whole numbers.
    """
    model, ids = lively(fields), tokens(3, 150)
    if exits:
        model.choose_exits(exits)
    stored = quant.apply(model, plan)
    exact = model(ids)
    keep_int8(model, stored)
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


@torch.inference_mode()
def check_packed_weights(fields: Fields) -> None:
    """The packed model shares no weight with the model, and a refresh brings all of them."""

    def logits(packed: GPT) -> Tensor:
        return packed.logits(packed.hidden(ids))

    model, ids = lively(fields), tokens(2, 20)
    packed = pack(model)
    before = logits(packed)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    assert torch.equal(logits(packed), before)
    copy_weights(packed, model)
    assert torch.equal(logits(packed), logits(pack(model)))
    assert not torch.equal(logits(packed), before)


def picked_plainly(model: GPT, prompt: list[int], letters: list[int]) -> int:
    logits = model(torch.tensor([prompt]))[0, -1].tolist()
    return max(range(len(letters)), key=lambda i: logits[letters[i]])


def check_letters(config: str | Fields) -> None:
    """A batch of prompts picks the letters that each prompt picks alone."""
    tokenizer = Tokenizer.train(["Reply with nothing but the letter of the right choice. 12 + 34 = 46 #### " * 3], 300)
    model = model_for(tokenizer, config, depth=2, max_seq_len=512).requires_grad_(False)
    dice = random.Random(5)
    prompts = [[dice.randrange(model.config.vocab_size) for _ in range(dice.randrange(1, 300))] for _ in range(24)]
    letters = [dice.sample(range(256), dice.randrange(1, 6)) for _ in prompts]
    expected = [picked_plainly(model, *pair) for pair in zip(prompts, letters, strict=True)]
    assert len(set(expected)) > 2
    model.attention = "flash3"  # this machine has none: batches of ever new shapes take another path
    for size in (5, 24):
        parts = [slice(i, i + size) for i in range(0, 24, size)]
        logits = torch.cat([last_logits(model, prompts[part]) for part in parts])
        got = [int(row[some].argmax()) for row, some in zip(logits, letters, strict=True)]
        assert got == expected, size


# ---- the fields of a config ----


@dataclasses.dataclass(frozen=True)
class FieldCase:
    """A field of a config, and a small model with another value of it."""

    name: str
    value: Any
    usual: Fields  # of the model without it

    @property
    def switched(self) -> Fields:
        return {**self.usual, self.name: self.value}


def field_cases(config_class: type, left_out: set[str], other_values: Fields, usual: Fields = SMALL) -> list[FieldCase]:
    """Return a case for each field of a config; bool fields are switched.

    A new field fails until it is in `other_values`, or among those that are left out.
    """
    cases = []
    for field in dataclasses.fields(config_class):
        if field.name not in left_out:
            switched = isinstance(field.default, bool)
            value = not field.default if switched else other_values[field.name]
            cases.append(FieldCase(field.name, value, usual))
    return cases


def each_case(cases: list[FieldCase]) -> pytest.MarkDecorator:
    """Run a test with each case."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def check_that_it_acts(case: FieldCase, same_shapes: bool = True) -> None:
    """Another value gives other logits. same_shapes: then only the field differs."""
    ids = tokens()
    usual, other = lively(case.usual), lively(case.switched)
    kept = {name: value for name, value in usual.state_dict().items() if name in other.state_dict()}
    if same_shapes:
        other.load_state_dict(kept, strict=False)
    assert (usual(ids) - other(ids)).abs().max() > 1e-3


def check_training_and_inference(case: FieldCase) -> None:
    """A gradient reaches every parameter, recomputation changes none, and decoding is the full pass."""
    ids = tokens()
    usual = gradients(lively(case.switched), ids)
    assert all(value.any() for value in usual.values())
    again = gradients(lively(case.switched, checkpointing=True), ids)
    assert_close(again, usual, atol=1e-5, rtol=1e-4)
    check_decoding(case.switched)


def check_bound_of_scores(case: FieldCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scores_are_bounded, no value of the learned factors brings a score above the bound."""
    model = lively(case.switched)
    config = model.config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model.parameter_row(name).group != "matrices":
                parameter *= 50
    largest = []

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: attention.Mask, scale: float) -> Tensor:
        group = q.shape[2] // k.shape[2]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, dim=2)) * scale
        largest.append(float(scores.detach().abs().max()))
        return attention.attend(q, k, v, mask, scale)

    monkeypatch.setattr(gpt, "attend", watched)
    model(tokens())
    holds = max(largest) <= config.attention_scale * config.head_dim * (1 + 1e-5)
    assert holds == config.scores_are_bounded


def check_rows(model_class: type[GPT], models: list[GPT]) -> None:
    """These models together use every row of their class, and each row has a rule for the optimizer."""
    rows = {model.parameter_row(name).pattern for model in models for name, _ in model.named_parameters()}
    assert rows == {row.pattern for row in model_class.parameter_rows}
    assert {row.group for row in model_class.parameter_rows} <= {rule.name for rule in RULES}
