"""Sharded weights beside whole ones and beside FSDP2, on ranks that are processes; test_run.py has scripts."""

import gc
from pathlib import Path
from typing import Any

import fsdp_ranks
import pytest
import torch
from forks import Forked
from models import CONFIGS, SMALL, lively, tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from nanochat import fp8, sharding
from nanochat.gpt import GPTConfig
from nanochat.models import new_model
from nanochat.objectives import next_token
from nanochat.optim import Optimizer
from nanochat.param_groups import build_groups, group_rates, parameter_counts, state_bytes
from nanochat.runtime import Runtime, setup
from nanochat.settings import OptimizerSettings
from nanochat.sharding import Shards

STEPS, LENGTH = 20, 16
# Without accumulation and clipping all sums have one order: the weights are equal to the last bit.
EXACT = {
    "plain": {"exact": True},
    "checkpointing": {"exact": True, "checkpointing": True},
    # Emulated products take long.
    "fp8": {"exact": True, "fp8": True, "fields": SMALL | {"depth": 2, "width": 32, "heads": 2, "kv_heads": 1}},
    "compiled": {"exact": True, "compiled": True},
}
NEAR = {
    "accumulation and clipping": {},
    "checkpointing too": {"checkpointing": True},
    "tied embeddings": {"fields": CONFIGS["odd shapes"]},
}
Cases = dict[str, dict[str, Any]]  # name → options


def build(options: dict[str, Any], runtime: Runtime, sharded: bool, weights: dict[str, Tensor] | None = None):
    """Return a model in which nothing is zero, and its optimizer."""
    fields = options.get("fields", SMALL)
    model = lively(fields, attention="chunks", checkpointing=options.get("checkpointing", False))
    weights = weights or model.state_dict()
    if sharded:
        model = new_model(model.config, model.attention, model.checkpointing)
    if "fp8" in options:
        fp8.convert(model, 16, emulated=True, device=runtime.device)
    if sharded:
        Shards(model, weights.__getitem__, runtime)
    if "compiled" in options:
        model.compile_parts()
        model.compile_ends()  # as on a GPU
    # Where an update is nearly 0, rounding decides whether the weight decays.
    groups = build_groups(
        model, group_rates(OptimizerSettings(), model.config.width, 0.1, 0.1 if "exact" in options else 0.0)
    )
    return model, Optimizer(groups, runtime.rank, runtime.world_size, stacking=model.shards)


def state_of(model, optimizer: Optimizer):
    """Return this rank's part of what a checkpoint has."""
    found = {name: value.clone() for name, value in (model.shards or model.state_dict()).items()}
    for name, states in optimizer.state_tensors():
        found |= {f"{name}/{key}": value.clone() for key, value in states.items()}
    return found


def train(options: dict[str, Any], runtime: Runtime, sharded: bool):
    model, optimizer = build(options, runtime, sharded)
    objective = options.get("objective", next_token)
    is_exact = "exact" in options
    figures = []
    for step in range(options.get("steps", STEPS)):
        rows = tokens(2 * runtime.world_size, LENGTH + 1, seed=step % 3)[runtime.rank :: runtime.world_size]
        total = torch.zeros(1)
        for part in rows.split(2 if is_exact else 1):
            loss, _, _ = objective(model, (part[:, :-1], part[:, 1:]))
            loss.backward()
            total += loss.detach() / rows.numel()
        norm = optimizer.step(1 / rows.numel(), clip=0.0 if is_exact else 0.5)
        optimizer.zero_grad()
        fp8.requantize(model)
        figures.append(torch.cat([runtime.all_reduce(total), norm.view(1)]))
    with model.whole(), torch.no_grad():
        figures.append(runtime.all_reduce(model(rows[:, :-1], rows[:, 1:], "none").sum(1)) / rows.numel())
    return state_of(model, optimizer) | {"figures": torch.cat(figures)}


def train_both(folder: Path, cases: Cases) -> None:
    """Train on this rank with whole and with sharded weights."""
    with setup("cpu", "fp32") as runtime:
        for case, options in cases.items():
            whole, merged = train(options, runtime, False), {}
            for found in runtime.all_gather(train(options, runtime, True)):  # ranks take turns to save states
                merged |= found
            limit = 1e-5
            if "exact" in options:
                torch.testing.assert_close(merged.pop("figures"), whole.pop("figures"), atol=1e-6, rtol=1e-6)
                limit = 0
            for name, value in whole.items():
                torch.testing.assert_close(
                    merged[name], value, atol=limit, rtol=limit, msg=lambda text, at=(case, name): f"{at}: {text}"
                )
        if len(cases) == 1 and runtime.rank == 0:
            save_file(merged, folder / "state.safetensors")


def some(cases: Cases, *names: str) -> Cases:
    return {name: cases[name] for name in names}


SLOW = pytest.param(some(EXACT, "compiled"), marks=pytest.mark.slow)


# The states of four ranks, below, are those of accumulation and clipping.
QUICK = some(EXACT, "plain", "checkpointing", "fp8"), some(NEAR, "checkpointing too", "tied embeddings")


@pytest.mark.parametrize("cases", [*QUICK, SLOW], ids=["exact", "near", "compiled"])
def test_they_train_alike(tmp_path, cases) -> None:
    Forked(tmp_path, train_both, tmp_path, cases, ranks=2).done()


def load_and_save(file: Path, case: str) -> None:
    saved = load_file(file)

    def states(name: str):
        return {key.rpartition("/")[2]: value for key, value in saved.items() if key.rpartition("/")[0] == name}

    with setup("cpu", "fp32") as runtime:
        for sharded in (True, False):
            model, optimizer = build(NEAR[case], runtime, sharded, saved)
            if not sharded:
                model.load_state_dict({name: saved[name] for name in model.state_dict()})
            optimizer.load_state_tensors(states)
            merged = {}
            for found in runtime.all_gather(state_of(model, optimizer)):
                merged |= found
            for name in saved.keys() - {"figures"}:
                assert torch.equal(merged[name], saved[name]), (name, sharded)


def test_states_of_four_ranks_load_on_any_number(tmp_path) -> None:
    case = "accumulation and clipping"
    Forked(tmp_path / "four", train_both, tmp_path, some(NEAR, case), ranks=4).done()
    for ranks in (3, 8):
        Forked(tmp_path / f"{ranks}", load_and_save, tmp_path / "state.safetensors", case, ranks=ranks).done()


def held_bytes():
    """Return the bytes of all tensors that Python reaches: activations in the graph are not among them."""
    storages = [thing.untyped_storage() for thing in gc.get_objects() if type(thing) in (Tensor, Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def measure(sharded: bool) -> None:
    """Train a step, and compare the most bytes of weights, gradients and states with the rank's share of all."""
    fields = SMALL | {"width": 256, "depth": 6, "kv_heads": 4, "value_embeds": False}
    with setup("cpu", "fp32") as runtime:
        before, seen = held_bytes(), []
        model = new_model(GPTConfig(**fields), "chunks")
        if sharded:
            Shards(model, lambda name: model.initial(1, name), runtime)
            exchange = sharding.dist.reduce_scatter_tensor

            def observed(*tensors: Tensor, **options: bool):
                seen.append(held_bytes())  # beside the whole gradients of a unit
                return exchange(*tensors, **options)

            sharding.dist.reduce_scatter_tensor = observed
        else:
            model.to_empty(device="cpu").init_weights(1)
        for block in model.blocks:
            block.mlp.register_forward_hook(lambda *_: seen.append(held_bytes()))  # beside its whole weights
        groups = build_groups(model, group_rates(OptimizerSettings(), model.config.width, 0.1, 0.1))
        optimizer = Optimizer(groups, runtime.rank, runtime.world_size, stacking=model.shards)
        rows = tokens(1, 5)
        model(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step()
        largest = 8 * sum(parameter.numel() for parameter in model.blocks[0].parameters())
        total = 8 * parameter_counts(model)["total"] + state_bytes(model)
        assert 0.9 * total < (max(seen) - before - largest * sharded) * runtime.world_size < 1.1 * total


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_holds_its_share_and_one_block(tmp_path, ranks) -> None:
    Forked(tmp_path, measure, ranks > 1, ranks=ranks).done()


def train_for_oracle(model, optimizer, runtime: Runtime):
    """Return losses and norms of the gradient of five steps, and the weights at the end."""
    losses, norms = [], []
    for step in range(5):
        rows = tokens(2 * runtime.world_size, LENGTH + 1, seed=step)[runtime.rank :: runtime.world_size]
        optimizer.zero_grad()  # before, so that gradients are there after the last step, to be counted
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        targets = runtime.world_size * rows[:, 1:].numel()
        losses.append(runtime.all_reduce(loss.detach().clone()) / targets)
        norms.append(optimizer.step(1 / targets))  # the updates hardly change with the size of gradients
    weights = dict(model.shards.items()) if model.shards else fsdp_ranks.whole_weights(model)
    weights = {name: value.clone() for name, value in weights.items()}
    return torch.stack(losses), torch.stack(norms), weights


def kept_bytes(model, optimizer: Optimizer):
    """Return the bytes of a rank's shards of weights, gradients and states; and those of all else that it keeps.

    The rest: parameters that stay whole, variances (one number a row or column), and the number in an empty Parameter.
    """
    tensors = [*model.parameters(), *(buffer for unit in model.shards.units.values() for buffer in unit.buffers)]
    tensors += [part for piece in model.shards.pieces.values() for part in (piece.mine, piece.reduced)]
    rest = 4 * len(model.shards.pieces)
    for stack in optimizer._stacks:
        parts = [stack.values, stack.grads, stack.reduced, *stack.states.values()]
        tensors += parts
        rest += stack.states["variance"].nbytes if "variance" in stack.states else 0
        rest += storage_bytes(parts) if stack.is_exchanged else 0
    return storage_bytes(tensors) - rest, rest


def storage_bytes(tensors: list[Tensor]):
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def compare_with_fsdp(fields: dict[str, Any]) -> None:
    """Train alike with our shards and with FSDP2; compare losses, weights, and what the rank keeps between steps."""
    with setup("cpu", "fp32") as runtime:
        model, optimizer = build({"fields": fields}, runtime, True)
        losses, norms, weights = train_for_oracle(model, optimizer, runtime)
        assert model.shards is not None
        ours, rest = kept_bytes(model, optimizer)
        names = list(model.shards.pieces)

        model = lively(fields, attention="chunks")
        initial = {name: value.clone() for name, value in model.state_dict().items()}
        fsdp_ranks.shard(model, runtime)
        groups = build_groups(model, group_rates(OptimizerSettings(), model.config.width, 0.1, 0.0))  # as in `build`
        oracle = fsdp_ranks.PlainOptimizer(groups)
        other_losses, other_norms, other_weights = train_for_oracle(model, oracle, runtime)

        torch.testing.assert_close(losses, other_losses, atol=0, rtol=1e-6)
        torch.testing.assert_close(norms, other_norms, atol=0, rtol=1e-5)
        assert weights.keys() == other_weights.keys() == initial.keys()
        for name, value in other_weights.items():
            assert not torch.equal(value, initial[name]), name  # it was trained
            torch.testing.assert_close(
                weights[name], value, atol=1e-5, rtol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
            )

        shards = oracle.kept()
        theirs = sum(value.nbytes for name in names for value in shards[name])
        # FSDP2 divides rows: of an odd number the first rank has one more. Ours fills its shards up to 16 bytes.
        rough = [name for name in names if len(weights[name]) % runtime.world_size]
        padding = sum(len(shards[name]) * (4 * weights[name][0].numel() + 16) for name in rough)
        assert abs(ours - theirs) <= padding, (ours, theirs)
        assert rest < 0.02 * theirs, (rest, theirs)


ORACLE_CASES = {"untied": SMALL, "tied": CONFIGS["odd shapes"]}


@pytest.mark.parametrize("case", ORACLE_CASES)
def test_fsdp2_is_the_oracle(tmp_path, case) -> None:
    Forked(tmp_path, compare_with_fsdp, ORACLE_CASES[case], ranks=2).done()
