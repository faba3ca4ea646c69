import random
from functools import partial
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from forks import Forked
from models import SMALL, lively, tokens
from safetensors.torch import save_file
from torch.nn import Parameter
from torch.testing import assert_close

from nanochat import schedules
from nanochat.optim import KINDS, Group, Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.settings import OptimizerSettings

SEED = 20261123  # fixed: where an update is nearly 0, rounding decides whether the weight decays


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)


def parameters(*shapes: tuple[int, ...]):
    return [(f"p{number}", Parameter(torch.randn(shape))) for number, shape in enumerate(shapes)]


def give_gradients(params: list[tuple[str, Parameter]], size: float = 1.0):
    for _, parameter in params:
        parameter.grad.normal_(std=size)
    return [parameter.grad.clone() for _, parameter in params]


def test_adamw_equals_its_plain_twin() -> None:
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


def test_the_norm_is_true_and_clipping_scales_by_it() -> None:
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


def test_compiled_equals_eager_and_is_compiled_once(monkeypatch) -> None:
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
def test_a_kind_is_complete(kind) -> None:
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


class Run:
    """A small model and its optimizer on one of several ranks. Tests of the loop compare ranks with one process."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks, self.model = rank, ranks, lively(SMALL)
        groups = build_groups(self.model, group_rates(OptimizerSettings(), self.model.config.width, 0.1, 0.0))
        self.optimizer = Optimizer(groups, rank, ranks, chunk_bytes=1000)

    def step(self, number: int):
        """Take a step; return the chunks of gradients that were under way before it."""
        rows = tokens(8, 6, seed=number)[self.rank :: self.ranks]
        with self.optimizer.reduce_in_backward():
            self.model(rows[:, :-1], rows[:, 1:]).backward()
        sent_early = len(self.optimizer._works)
        self.optimizer.step(1 / 40, clip=0.5)
        self.optimizer.zero_grad()
        return sent_early


def test_gradients_and_parameters_stay_where_they_are(tmp_path) -> None:
    run = Run()
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")  # it refuses tensors that overlap
    places = [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert all(place % 16 == 0 for pair in places for place in pair)
    for number in range(2):
        run.step(number)
    assert places == [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert not any(p.grad.any() for p in run.model.parameters())


def main() -> None:
    dist.init_process_group("gloo")
    place = dist.get_rank(), dist.get_world_size()
    run, resumed = Run(*place), Run(*place)
    run.step(0)
    assert run.step(1) > len(run.optimizer._chunks) // 2  # in the backward
    own = [(name, {key: t.clone() for key, t in state.items()}) for name, state in run.optimizer.state_tensors()]
    saved = [None] * run.ranks
    dist.all_gather_object(saved, own)
    resumed.model.load_state_dict(run.model.state_dict())
    resumed.optimizer.load_state_tensors(dict(chain.from_iterable(saved)).__getitem__)
    for each in (run, resumed):
        each.step(2)
    assert_close(run.model.state_dict(), resumed.model.state_dict(), atol=0, rtol=0)
    dist.destroy_process_group()


def test_ranks_send_in_the_backward_and_resume_bit_for_bit(tmp_path) -> None:
    Forked(tmp_path, main, ranks=4).done()
