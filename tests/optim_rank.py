"""A small model stepped on any number of ranks: what the tests of the optimizer run here and in processes of their own.

`main` is one of several ranks; folder: where runs are left, like `half2.safetensors` of 2 ranks, and where `half1` is.
"""

from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nanochat.optim import Group, Optimizer

ROWS, STEPS = 8, 6  # of a global batch


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
            x = x + self.down[layer](self.up[layer](x).relu().square()) * self.scales[layer]
            x = x + self.mix[layer](x) + self.values[layer % 2](ids)
        return (self.mix[3](x).sin() * self.mix[4](x)).square().sum()


def groups_of(model: nn.Module) -> list[Group]:
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if name.startswith(("up", "down", "mix", "unused"))]
    rest = [(name, p) for name, p in named if name not in dict(matrices)]
    return [
        Group("rest", "adamw", rest, 0.01, 0.8, 0.95, 0.05),
        Group("matrices", "muon", matrices, 0.02, 0.9, 0.9, 0.1),
    ]


class Run:
    def __init__(self, rank: int = 0, ranks: int = 1):
        self.rank, self.ranks, self.model = rank, ranks, Small()
        self.optimizer = Optimizer(groups_of(self.model), rank, ranks, chunk_bytes=1000, ema=0.6)
        self.norms = []
        self.sent_early = 0  # chunks of the last step that were under way before it

    def go(self, first: int, last: int, micro: int = 2) -> "Run":
        """Steps first..last - 1."""
        for step in range(first, last):
            rows = torch.randint(50, (ROWS, 5), generator=torch.Generator().manual_seed(step))[self.rank :: self.ranks]
            numbers = torch.arange(ROWS)[self.rank :: self.ranks]
            pieces = list(zip(rows.split(micro), numbers.split(micro), strict=True))
            for at, piece in enumerate(pieces, 1):
                with self.optimizer.reduce_in_backward() if at == len(pieces) else nullcontext():
                    self.model(*piece).backward()
            self.sent_early = len(self.optimizer._works)
            self.norms.append(self.optimizer.step(1 / (ROWS * 5), clip=0.5))
            self.optimizer.zero_grad()
            self.optimizer.update_average(step + 1)
        return self

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


def main(folder: Path) -> None:
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
