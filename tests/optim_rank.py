"""A small model stepped on any number of ranks: what the tests of the optimizer run here and under torchrun.

Arguments of a rank: the folder where the runs are left, and where a run `world1` is that it goes on from if it is there.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nanochat.optim import Group, Optimizer

ROWS, STEPS = 8, 6  # of a global batch


class Fault(torch.autograd.Function):
    """Out of memory in the backward, once `armed`."""

    armed = False

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        if Fault.armed:
            Fault.armed = False
            raise torch.OutOfMemoryError("planned")
        return gradient


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 8)
        self.values = nn.ModuleList(nn.Embedding(50, 8) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(8, 20, bias=False) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(20, 8, bias=False) for _ in range(3))
        self.mix = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(5))
        self.scales = nn.Parameter(torch.ones(3))
        self.rare = nn.Parameter(torch.ones(8))  # touched by the first row of a batch only
        self.unused = nn.Parameter(torch.ones(8, 8))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        x = self.embed(ids)
        if (numbers == 0).any():
            x = x + (numbers == 0)[:, None, None] * self.rare
        for layer in range(3):
            if layer == 1:
                x = Fault.apply(x)
            x = x + self.down[layer](self.up[layer](x).relu().square()) * self.scales[layer]
            x = x + self.mix[layer](x) + self.values[layer % 2](ids)
        return (self.mix[3](x).sin() * self.mix[4](x)).square().sum()


def groups_of(model: nn.Module) -> list[Group]:
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if name.startswith(("up", "down", "mix", "unused"))]
    rest = [(name, p) for name, p in named if name not in dict(matrices)]
    return [
        Group("rest", "adamw", rest, 0.01, (0.8, 0.95), 0.05),
        Group("matrices", "muon", matrices, 0.02, (0.9, 0.9), 0.1),
    ]


def accumulate(model: nn.Module, optimizer: Optimizer, rows: Tensor, numbers: Tensor, micro: int) -> None:
    pieces = list(zip(rows.split(micro), numbers.split(micro), strict=True))
    for at, piece in enumerate(pieces, 1):
        with optimizer.reduce_in_backward() if at == len(pieces) else nullcontext():
            model(*piece).backward()


class Run:
    def __init__(self, rank: int = 0, ranks: int = 1, **options):
        self.rank, self.ranks, self.model = rank, ranks, Small()
        self.optimizer = Optimizer(groups_of(self.model), rank, ranks, chunk_bytes=1000, **options)
        self.norms = []
        self.sent_early = 0  # chunks of the last step that were under way before it

    def go(self, first: int, last: int, micro: int = 2, fault: tuple[int, int] | None = None) -> "Run":
        """Steps first..last - 1; fault: the (step, rank) that runs out of memory in its last backward."""
        for step in range(first, last):
            rows = torch.randint(50, (ROWS, 5), generator=torch.Generator().manual_seed(step))[self.rank :: self.ranks]
            numbers = torch.arange(ROWS)[self.rank :: self.ranks]
            if fault == (step, self.rank):
                micro = len(rows)  # the first backward is the last
                Fault.armed = True
            try:
                accumulate(self.model, self.optimizer, rows, numbers, micro)
            except torch.OutOfMemoryError:
                self.sent_early = self._sent()
                self.optimizer.restart()
                accumulate(self.model, self.optimizer, rows, numbers, len(rows) // 2)
            else:
                self.sent_early = self._sent()
            self.norms.append(self.optimizer.step(1 / (ROWS * 5), clip=0.5))
            self.optimizer.zero_grad()
        return self

    def _sent(self) -> int:
        return len(self.optimizer._reduce._works) if self.optimizer._reduce else 0

    def load(self, tensors: dict[str, Tensor]) -> "Run":
        self.model.load_state_dict({name: t for name, t in tensors.items() if "|" not in name and name != "norms"})

        def read(name: str) -> dict[str, Tensor]:
            return {key.split("|")[1]: t for key, t in tensors.items() if key.split("|")[0] == name and "|" in key}

        self.optimizer.load_state_tensors(read)
        return self

    def tensors(self) -> dict[str, Tensor]:
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


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    place = dist.get_rank(), dist.get_world_size()
    half = Run(*place).go(0, 3).tensors()
    # The first backward teaches the order in which chunks are sent: a fault there and a fault later.
    first, later = ((step, place[1] - 1) for step in (0, 2))
    faulty = Run(*place).go(0, 3, fault=later)
    runs: dict[str, Callable[[], Run]] = {
        "straight": lambda: Run(*place).go(0, STEPS),
        "resumed": lambda: Run(*place).load(half).go(3, STEPS),
        "micro1": lambda: Run(*place).go(0, 3, micro=1),
        "fault_first": lambda: Run(*place).go(0, 3, fault=first),
        "fault_later": lambda: faulty,
    }
    if (world1 := Path(folder) / "world1.safetensors").exists():
        runs["reloaded"] = lambda: Run(*place).load(load_file(world1))
    results = {name: make() for name, make in runs.items()}
    # Chunks were sent within the backward, and in the one that failed some were and some were not.
    whole = Run(*place).go(0, 3)
    sent = [whole.sent_early, len(whole.optimizer._reduce._chunks)]
    tensors = {name: run.tensors() for name, run in results.items()} | {"half": half}
    if place[0] == 0:
        for name, kept in tensors.items():
            save_file(kept, Path(folder) / f"{name}{place[1]}.safetensors")
        print("sent", *sent)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
