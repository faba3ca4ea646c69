from types import SimpleNamespace

import pytest
import torch
from torch.nn import Parameter

from nanochat.gpt import GPT, PARAMETERS, GPTConfig
from nanochat.param_groups import RULES, build_groups, group_rates
from scripts.base_train import Config

NAMES = [*GPT(GPTConfig(128, depth=2, width=64, heads=2, kv_heads=2, mlp="swiglu")).state_dict()]
# Groups that only a track's kind of model has.
OF_TRACKS = ["gains"]


def named(*names: str):
    return [(name, Parameter(torch.zeros(2, 2))) for name in names]


def groups(names: list[str] = NAMES, batch_scale: float = 1.0, width: int = 768, **rates: float):
    shape = SimpleNamespace(width=width, tie_embeddings="head.weight" not in names)
    about = {"config": shape, "parameter_row": GPT.parameter_row}
    model = SimpleNamespace(named_parameters=lambda: named(*names), **about)
    final = group_rates(Config(**rates), width, batch_scale, 0.1)
    return {group.name: group for group in build_groups(model, final)}


def test_every_parameter_is_in_one_group_or_named(monkeypatch) -> None:
    found = groups()
    assert list(found) == [rule.name for rule in RULES if rule.name not in OF_TRACKS]
    assert sorted(name for group in found.values() for name, _ in group.params) == sorted(NAMES)
    assert [name for name, _ in found["matrices"].params] == [
        name for name in NAMES if name.startswith("blocks.") and name.endswith(".weight")
    ]
    assert list(groups(["embed.weight", "blocks.0.attn.q.weight"])) == ["unembedding", "matrices"]
    with pytest.raises(AssertionError, match=r"blocks\.0\.novelty matches 0 rows of GPT\.parameter_rows"):
        groups(["head.weight", "blocks.0.novelty"])
    monkeypatch.setattr(GPT, "parameter_rows", (*PARAMETERS, PARAMETERS[0]))
    with pytest.raises(AssertionError, match=r"embed\.weight matches 2 rows"):
        groups(["embed.weight", "head.weight"])


def test_learning_rates_are_flags_and_scale_with_batch_and_width() -> None:
    plain, large = groups(), groups(batch_scale=2.0, width=3072)
    grown = {name: large[name].lr / group.lr for name, group in plain.items()}
    both = dict.fromkeys(["unembedding", "embedding", "value_embeds"], 1.0)  # 2 for the batch, half for width
    assert grown == pytest.approx(dict.fromkeys(plain, 2.0) | both | {"smear": 1.0, "backout": 1.0})
    rates = {name: group.lr for name, group in plain.items()}
    expected = """unembedding 0.008 embedding 0.3 value_embeds 0.15 residual_lambdas 0.005 x0_lambdas 0.5
        smear 0.2 backout 0.2 matrices 0.02""".split()
    assert rates == pytest.approx(dict(zip(expected[::2], map(float, expected[1::2]), strict=True)))
    flags = {rule.rate for rule in RULES if rule.rate}
    plain, changed = groups(), groups(**{flag: 3 * getattr(Config(), flag) for flag in flags})
    grown = {name: changed[name].lr / group.lr for name, group in plain.items()}
    assert grown == pytest.approx(dict.fromkeys(plain, 3.0) | {"smear": 1.0, "backout": 1.0})
    one = groups(matrix_lr=0.5)
    assert {name for name in plain if one[name].lr != plain[name].lr} == {"matrices"}
