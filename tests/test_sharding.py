"""Sharded weights against whole ones, with ranks that are processes."""


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
CLIP = 0.5
CASES = {
    "plain": {},
    "checkpointing": {"checkpointing": True},
    "tied": {"config": "odd shapes"},
    "induction": {"config": "induction"},
    "recursive": {"config": "recursive"},
    "recursive checkpointing": {"config": "recursive passes", "checkpointing": True},
    "fp8": {"fp8": True},
    "compiled": {"compiled": True},
}


def built(case: str, runtime: Runtime, sharded: bool):
    """A model in which nothing is zero: rounding decides nothing."""
    options = CASES[case]
    fields = CONFIGS.get(options.get("config"), SMALL)
    model = lively(fields, attention="chunks", checkpointing=options.get("checkpointing", False))
    values = model.state_dict()
    if sharded:
        model = new_model(GPTConfig(**fields), model.attention, model.checkpointing)
    if "fp8" in options:
        fp8.convert(model, 16, emulated=True, device=runtime.device)
    if sharded:
        Shards(model, values.__getitem__, runtime)
    if "compiled" in options:
        model.compile_parts()
    return model


def train(case: str, runtime: Runtime, sharded: bool):
    """Train as the loop does, with two micro-batches in a step, clipping and an average of the weights."""
    model = built(case, runtime, sharded)
    groups = build_groups(model, OptimizerSettings(), 0.1, 0.1)
    optimizer = Optimizer(groups, runtime.rank, runtime.world_size, ema=0.9, shards=model.shards)
    objective = DeepSupervision(2.0, 0.5) if model.config.supervision else next_token
    figures = []
    for step in range(STEPS):
        rows = tokens(2 * runtime.world_size, LENGTH + 1, seed=step % 3)[runtime.rank :: runtime.world_size]
        total = torch.zeros(1)
        for row in rows.split(1):
            loss, _, _ = objective(model, (row[:, :-1], row[:, 1:]))
            loss.backward()
            total += loss.detach() / rows.numel()
        norm = optimizer.step(1 / rows.numel(), clip=CLIP)
        optimizer.zero_grad()
        optimizer.update_average(step + 1)
        fp8.refresh(model)
        figures.append(torch.cat([runtime.all_reduce(total), norm.view(1)]))
    tensors = (model.shards or model.state_dict()).items()
    found = {name: value.clone() for name, value in tensors}
    for name, states in optimizer.state_tensors():
        found |= {f"{name}/{key}": value.clone() for key, value in states.items()}
    return found | {"loss and norm": torch.stack(figures)}


def train_both(case: str):
    """Train on this rank with whole and with sharded weights; both are equal."""
    with setup("cpu", "fp32") as runtime:
        whole, sharded = (train(case, runtime, sharded) for sharded in (False, True))
        merged = {}
        for found in runtime.all_gather(sharded):  # states are saved in turns
            merged |= found
        for name, value in whole.items():
            torch.testing.assert_close(
                merged[name], value, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_sharded_weights_train_like_whole_ones(tmp_path, case, ranks):
    Forked(tmp_path, train_both, case, ranks=ranks).done()
