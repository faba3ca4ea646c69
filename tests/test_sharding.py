"""Sharded weights beside whole ones, on ranks that are processes; test_run.py has scripts that train with them."""

import pytest
import torch
from forks import Forked
from models import CONFIGS, SMALL, lively, tokens

from nanochat import fp8
from nanochat.gpt import GPTConfig
from nanochat.models import new_model
from nanochat.objectives import DeepSupervision, next_token
from nanochat.optim import Optimizer
from nanochat.param_groups import build_groups
from nanochat.runtime import Runtime, setup
from nanochat.settings import OptimizerSettings
from nanochat.sharding import Shards

STEPS, LENGTH = 20, 32
# Without accumulation and clipping all sums have one order: the weights are equal to the last bit.
EXACT = {
    "plain": {},
    "checkpointing": {"checkpointing": True},
    "fp8": {"fp8": True},
}
NEAR = {
    "accumulation and clipping": {},
    "tied embeddings": {"config": "odd shapes"},
    # Its gradients of backout are rounding.
    "recursion": {"config": "recursive", "backout": False},
    "recursion checkpointed": {"config": "recursive passes", "backout": False, "checkpointing": True},
}
CASES = EXACT | NEAR


def build(case: str, runtime: Runtime, sharded: bool):
    """Return a model in which nothing is zero, and its optimizer."""
    options = CASES[case]
    fields = CONFIGS.get(options.get("config"), SMALL) | {"backout": options.get("backout", True)}
    model = lively(fields, attention="chunks", checkpointing="checkpointing" in options)
    weights = model.state_dict()
    if sharded:
        model = new_model(GPTConfig(**fields), model.attention, model.checkpointing)
    if "fp8" in options:
        fp8.convert(model, 16, emulated=True, device=runtime.device)
    if sharded:
        Shards(model, weights.__getitem__, runtime)
    # Where an update is nearly 0, rounding decides whether the weight decays.
    groups = build_groups(model, OptimizerSettings(), 0.1, 0.1 if case in EXACT else 0.0)
    return model, Optimizer(groups, runtime.rank, runtime.world_size, shards=model.shards)


def train(case: str, runtime: Runtime, sharded: bool):
    model, optimizer = build(case, runtime, sharded)
    objective = DeepSupervision(2.0, 0.5) if model.config.supervision else next_token
    figures = []
    for step in range(STEPS):
        rows = tokens(2 * runtime.world_size, LENGTH + 1, seed=step % 3)[runtime.rank :: runtime.world_size]
        total = torch.zeros(1)
        for part in rows.split(2 if case in EXACT else 1):
            loss, _, _ = objective(model, (part[:, :-1], part[:, 1:]))
            loss.backward()
            total += loss.detach() / rows.numel()
        norm = optimizer.step(1 / rows.numel(), clip=0.0 if case in EXACT else 0.5)
        optimizer.zero_grad()
        fp8.refresh(model)
        figures.append(torch.cat([runtime.all_reduce(total), norm.view(1)]))
    with model.whole(), torch.no_grad():
        figures.append(runtime.all_reduce(model(rows[:, :-1], rows[:, 1:], "none").sum(1)) / rows.numel())
    found = {name: value.clone() for name, value in (model.shards or model.state_dict()).items()}
    for name, states in optimizer.state_tensors():
        found |= {f"{name}/{key}": value.clone() for key, value in states.items()}
    return found | {"figures": torch.cat(figures)}


def train_both(*cases: str):
    with setup("cpu", "fp32") as runtime:
        for case in cases:
            whole, merged = train(case, runtime, False), {}
            for found in runtime.all_gather(train(case, runtime, True)):  # ranks take turns to save states
                merged |= found
            figures = merged.pop("figures"), whole.pop("figures")
            torch.testing.assert_close(*figures, atol=1e-5, rtol=1e-5)
            limit = 0 if case in EXACT else 1e-5
            for name, value in whole.items():
                torch.testing.assert_close(merged[name], value, atol=limit, rtol=limit, msg=name)


@pytest.mark.parametrize("cases", [EXACT, NEAR])
def test_they_train_alike(tmp_path, cases):
    Forked(tmp_path, train_both, *cases, ranks=2).done()
