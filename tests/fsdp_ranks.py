"""FSDP2, torch's own sharding, as the oracle of nanochat/sharding.py: one rank's model and its update."""

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from nanochat.gpt import GPT
from nanochat.muon import decay_and_step, nesterov, orthogonalize
from nanochat.optim import Group
from nanochat.runtime import Runtime


def shard(model: GPT, runtime: Runtime) -> None:
    """Shard a model that each rank has whole, by block and embedding.

    In the root stay the head, whose weight the loss reads without the head's forward, so that its hooks would not run;
    with it a tied embedding; the gate of smear and the lambdas, which the model's forward reads. Every forward of the
    model gathers the root, and it stays whole until the backward has ended.
    """
    mesh = torch.distributed.init_device_mesh(runtime.device.type, (runtime.world_size,))
    embeddings = [*model.value_embeds.values(), *([] if model.config.tie_embeddings else [model.embed])]
    for module in [*model.blocks, *embeddings, model]:
        fully_shard(module, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # A sum over the ranks, as ours. Without the second call it is NCCL's PREMUL_SUM, which gloo lacks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def sharded(parameter: Tensor) -> DTensor:
    assert isinstance(parameter, DTensor)
    assert parameter.placements == (Shard(0),)
    return parameter


def whole_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights by name, gathered; all ranks call it."""
    return {name: sharded(parameter).full_tensor().detach() for name, parameter in model.named_parameters()}


class PlainOptimizer:
    """AdamW of torch on the shards; Muon for one matrix at a time, whose direction each rank gathers whole."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self.muon = [group for group in groups if group.kind == "muon"]
        settings = [
            {
                "params": [parameter for _, parameter in group.params],
                "lr": group.lr,
                "betas": (group.momentum, group.beta2),
                "eps": group.eps,
                "weight_decay": group.weight_decay,
            }
            for group in groups
            if group.kind == "adamw"
        ]
        self.adamw = torch.optim.AdamW(settings, foreach=False)
        self.momenta: dict[str, Tensor] = {}  # this rank's shards
        self.variances: dict[str, Tensor] = {}  # whole on each rank: one number a row or column
        for group in self.muon:
            for name, parameter in group.params:
                m, n = parameter.shape
                self.momenta[name] = torch.zeros_like(sharded(parameter).to_local())
                self.variances[name] = torch.zeros((1, m, 1) if m >= n else (1, 1, n))

    @torch.no_grad
    def step(self, scale: float) -> Tensor:
        """Update by the summed gradients × scale; return their norm."""
        gradients = [parameter.grad for group in self.groups for _, parameter in group.params]
        squares = torch.stack([sharded(gradient).to_local().square().sum() for gradient in gradients]).sum()
        torch.distributed.all_reduce(squares)
        for settings in self.adamw.param_groups:
            for parameter in settings["params"]:
                parameter.grad *= scale
        self.adamw.step()
        for group in self.muon:
            for name, parameter in group.params:
                self._step(group, name, sharded(parameter), torch.tensor(scale))
        return squares.sqrt() * scale

    def _step(self, group: Group, name: str, parameter: DTensor, scale: Tensor) -> None:
        m, n = parameter.shape
        lr = group.lr * max(1.0, m / n) ** 0.5
        assert parameter.grad is not None
        mesh, placements = parameter.device_mesh, parameter.placements
        mine = nesterov(sharded(parameter.grad).to_local(), self.momenta[name], scale, group.momentum)
        # The shape and stride are given: else uneven shards would be taken for even ones.
        direction = DTensor.from_local(mine, mesh, placements, shape=parameter.shape, stride=parameter.stride())
        whole = direction.full_tensor()
        update = orthogonalize(whole[None], self.variances[name], lr, group.beta2, torch.float32)[0]
        share = distribute_tensor(update, mesh, placements).to_local()
        decay_and_step(parameter.to_local(), share, lr * group.weight_decay)

    def zero_grad(self) -> None:
        self.adamw.zero_grad()
        for group in self.muon:
            for _, parameter in group.params:
                parameter.grad = None

    def kept(self) -> dict[str, list[Tensor]]:
        """Return this rank's shards by parameter: weights, gradients, and the states that have as many elements."""
        found = {}
        for group in self.groups:
            for name, parameter in group.params:
                state = self.adamw.state[parameter] if group.kind == "adamw" else {"momentum": self.momenta[name]}
                tensors = [parameter, parameter.grad, *(value for value in state.values() if value.ndim)]
                found[name] = [value.to_local() if isinstance(value, DTensor) else value for value in tensors]
        return found
