import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import Forked
from models import SMALL, lively, tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.testing import assert_close

from nanochat import schedules
from nanochat.optim import KINDS, Group, Optimizer
from nanochat.param_groups import build_groups
from nanochat.settings import OptimizerSettings

SEED = 20261123  # fixed: where an update is nearly 0, rounding decides whether the weight decays


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(SEED)
    random.seed(SEED)


def parameters(*shapes: tuple[int, ...]):
    return [(f"p{number}", Parameter(torch.randn(shape))) for number, shape in enumerate(shapes)]


def give_gradients(params: list[tuple[str, Parameter]], size: float = 1.0):
    for _, parameter in params:
        parameter.grad.normal_(std=size)
    return [parameter.grad.clone() for _, parameter in params]


def test_adamw_equals_its_plain_twin():
    shapes = [tuple(random.randint(1, 9) for _ in range(random.randint(0, 3))) for _ in range(6)]
    params = parameters(*shapes, shapes[0])
    group = Group("rest", "adamw", params, 0.1, 0.8, 0.95, 0.3, eps=1e-3)
    optimizer = Optimizer([group])
    peers = [Parameter(parameter.detach().clone()) for _, parameter in params]
    peer = torch.optim.AdamW(peers, lr=group.lr, betas=(0.8, 0.95), eps=group.eps, weight_decay=0.3, foreach=False)
    for _ in range(4):
        gradients = give_gradients(params)
        optimizer.step(0.1)
        for parameter, gradient in zip(peers, gradients, strict=True):
            parameter.grad = 0.1 * gradient
        peer.step()
        group.lr = peer.param_groups[0]["lr"] = group.lr * 0.9
    assert_close([parameter for _, parameter in params], peers, atol=1e-5, rtol=1e-5)


def both(params: list[tuple[str, Parameter]]):
    torch.manual_seed(SEED)
    matrices = [pair for pair in params if pair[1].ndim == 2]
    rest = [pair for pair in params if pair[1].ndim != 2]
    return [Group("rest", "adamw", rest, 0.1, 0.8, 0.95, eps=1e-3), Group("m", "muon", matrices, 0.1, 0.9, 0.9)]


def test_the_norm_is_true_and_clipping_scales_by_it():
    shapes = [(5,), (4, 6), (4, 6), (7, 2), (3, 2, 2)]
    first = parameters(*shapes)
    second = [(name, Parameter(parameter.detach().clone())) for name, parameter in first]
    clipped, scaled = Optimizer(both(first)), Optimizer(both(second))
    for size in (0.01, 10.0):  # below the threshold and above
        for params in (first, second):
            torch.manual_seed(int(size))
            gradients = give_gradients(params, size)
        true = float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) / 8
        norm = clipped.step(torch.tensor(1 / 8), clip=1.0)
        assert (norm.dtype, norm.shape) == (torch.float32, ())
        assert float(norm) == pytest.approx(true, rel=1e-5)
        scaled.step(min(1.0, 1 / true) / 8)
        assert_close(dict(first), dict(second), atol=1e-5, rtol=1e-5)
    assert true > 1


def test_compiled_equals_eager_and_is_compiled_once(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    results = []
    for compiled in (False, True):
        torch.manual_seed(SEED)
        params = parameters((12, 8), (12, 8))
        group = Group("matrices", "muon", params, 0.05, 0.9, 0.9, 0.3)
        optimizer = Optimizer([group], compile=compiled)
        for step in range(4):
            give_gradients(params)
            with torch._dynamo.config.patch(error_on_recompile=step > 0):
                optimizer.step(1 / (step + 1), clip=0.5)
            group.lr, group.momentum = group.lr * 0.9, group.momentum - 0.05
            group.weight_decay *= 0.5
        results.append([parameter.detach() for _, parameter in params])
    assert_close(*results, atol=1e-5, rtol=1e-5)


def optimizer_of(kind: str):
    params = parameters((64, 64), (64, 64), (64, 32))
    return params, Optimizer([Group("weights", kind, params, 0.1, 0.9, 0.9)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_complete(kind):
    """Its schedules, states and their size; and a step changes the parameters."""
    stack = KINDS[kind]
    assert "lr" in stack.scheduled
    assert set(stack.scheduled) <= set(schedules.pretraining(OptimizerSettings()))
    params, optimizer = optimizer_of(kind)
    before = [parameter.detach().clone() for _, parameter in params]
    give_gradients(params)
    optimizer.step()
    assert not any(torch.equal(old, parameter) for old, (_, parameter) in zip(before, params, strict=True))
    states = dict(optimizer.state_tensors())
    size = sum(stack.state_bytes * parameter.numel() for _, parameter in params)
    assert size == pytest.approx(sum(state.nbytes for saved in states.values() for state in saved.values()), rel=0.05)
    optimizer_of(kind)[1].load_state_tensors(states.__getitem__)


ROWS, STEPS = 8, 6  # of a global batch


class Run:
    """A small model and its optimizer on one of several ranks. Tests of the loop have parameters without gradients."""

    def __init__(self, rank: int = 0, ranks: int = 1):
        self.rank, self.ranks, self.model = rank, ranks, lively(SMALL)
        groups = build_groups(self.model, OptimizerSettings(), 0.1, 0.0)
        for group in groups:
            group.eps = 1e-3  # else rounding decides where a gradient is nearly 0
        self.optimizer = Optimizer(groups, rank, ranks, chunk_bytes=1000)
        self.norms = []
        self.sent_early = 0  # chunks of the last step that were under way before it

    def go(self, first: int, last: int, micro: int = 2):
        """Steps first..last - 1."""
        for step in range(first, last):
            pieces = tokens(ROWS, 6, seed=step)[self.rank :: self.ranks].split(micro)
            for at, piece in enumerate(pieces, 1):
                with self.optimizer.reduce_in_backward() if at == len(pieces) else nullcontext():
                    self.model(piece[:, :-1], piece[:, 1:]).backward()
            self.sent_early = len(self.optimizer._works)
            self.norms.append(self.optimizer.step(1 / (ROWS * 5), clip=0.5))
            self.optimizer.zero_grad()
        return self

    def load(self, tensors: dict[str, Tensor]):
        self.model.load_state_dict({name: t for name, t in tensors.items() if "|" not in name and name != "norms"})

        def read(name: str):
            return {key.split("|")[1]: t for key, t in tensors.items() if key.split("|")[0] == name and "|" in key}

        self.optimizer.load_state_tensors(read)
        return self

    def tensors(self):
        """Parameters, states and norms, gathered; every parameter's state was saved by one rank, all ranks agree."""
        mine = [(f"{name}|{state}", t.clone()) for name, s in self.optimizer.state_tensors() for state, t in s.items()]
        parameters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        saved, held = [mine], [parameters]
        if self.ranks > 1:
            saved, held = [None] * self.ranks, [None] * self.ranks
            dist.all_gather_object(saved, mine)
            dist.all_gather_object(held, parameters)
        for other in held:
            assert all(torch.equal(other[name], p) for name, p in parameters.items())
        states = [pair for pairs in saved for pair in pairs]
        assert len(dict(states)) == len(states)
        assert {key.split("|")[0] for key, _ in states} == parameters.keys()
        assert self.ranks == 1 or sum(map(bool, saved)) > 1
        return parameters | dict(states) | {"norms": torch.stack(self.norms) if self.norms else torch.zeros(0)}


def main(folder: Path):
    dist.init_process_group("gloo")
    rank, ranks = place = dist.get_rank(), dist.get_world_size()
    half = Run(*place).go(0, 3).tensors()
    runs = {
        "straight": Run(*place).go(0, STEPS),
        "resumed": Run(*place).load(half).go(3, STEPS),
        "micro1": Run(*place).go(0, 3, micro=1),
        "reloaded": Run(*place).load(load_file(folder / "half1.safetensors")),
    }
    assert runs["straight"].sent_early > len(runs["straight"].optimizer._chunks) // 2  # in the backward
    for name, tensors in {"half": half, **{name: run.tensors() for name, run in runs.items()}}.items():
        if rank == 0:
            save_file(tensors, folder / f"{name}{ranks}.safetensors")
    dist.destroy_process_group()


def test_gradients_and_parameters_stay_where_they_are(tmp_path):
    run = Run()
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")  # it refuses tensors that overlap
    places = [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert all(place % 16 == 0 for pair in places for place in pair)
    run.go(0, 2)
    assert places == [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert not any(p.grad.any() for p in run.model.parameters())


def assert_identical(one: dict[str, Tensor], other: dict[str, Tensor]):
    assert one.keys() == other.keys()
    assert [name for name in one if name != "norms" and not torch.equal(one[name], other[name])] == []


def test_ranks(tmp_path):
    half1, straight1 = Run().go(0, 3).tensors(), Run().go(0, 6).tensors()
    assert_identical(Run().load(half1).go(3, 6).tensors(), straight1)
    save_file(half1, tmp_path / "half1.safetensors")
    Forked(tmp_path / "of 4", main, tmp_path, ranks=4).done()
    read = {path.stem[:-1]: load_file(path) for path in tmp_path.glob("*4.safetensors")}
    for name, alone in {"straight": straight1, "half": half1, "micro1": half1}.items():
        assert_close(read[name], alone, atol=1e-5, rtol=1e-5)
    assert_identical(read["resumed"], read["straight"])
    assert_identical(read["reloaded"], half1)  # from 1 rank to several
    assert_identical(Run().load(read["half"]).tensors(), read["half"])  # and back
