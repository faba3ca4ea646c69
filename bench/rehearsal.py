"""A training step rehearsed on fake tensors: memory by kind, bytes sent, waits of the host, compiled graphs.

Fake tensors have shapes and no values, and a fake process group answers for ranks that do not exist: a model of any
size on any number of ranks takes seconds and no memory. The step is the training loop's own, with the model, loss and
optimizer of a run. Tensors are labelled cpu, because cuda labels need a driver. The compiled loss is left out, not
its memory. Compiled code is cut into forward and backward as Inductor cuts it, and runs operator by operator:
a peak in the backward counts values that a fused kernel would not store.

Not counted: fragmentation, the device's context, buffers inside libraries, the block masks of flex attention. A shape
that depends on values (nonzero, a mask as an index) is an error. Waits are seen where a value is read (`item`,
`tolist`, `bool`, `cpu`), not in `.to("cpu")`, in `synchronize`, or in copies to the device.
"""

import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanochat import attention, cross_entropy, fp8
from nanochat.gpt import GPT
from nanochat.runtime import Runtime, without_garbage_collection
from nanochat.train import TrainingLoop

# Inductor's decompositions and its choice of values to keep for the backward, without kernels.
BACKEND = "aot_eager_decomp_partition"
CASTS = ("_to_copy", "convert_element_type")
# Functions, and the kind of the memory that each takes; the innermost in the stack counts.
KIND_OF_CODE = (
    (cross_entropy.cross_entropy.__code__, "logits"),  # and the gradient of the head's weight
    (GPT.forward.__code__, "activations"),
    (TrainingLoop._accumulate.__code__, "backward"),  # gradients on their way, and activations computed again
    (TrainingLoop.launch.__code__, "update"),
)


@dataclass(frozen=True)
class Rehearsal:
    """Figures of rank 0 in the last step, in bytes.

    memory: at the peak, by kind. moment: the kind that grew at the peak. sent: by collective, each tensor once. waits:
    a line of code for each value that the host reads from the device. graphs: compiled in each step. breaks: reasons.
    """

    memory: dict[str, int]
    moment: str
    sent: dict[str, int]
    waits: list[str]
    graphs: list[int]
    breaks: list[str]

    @property
    def peak(self):
        return sum(self.memory.values())


class _Meter(TorchDispatchMode):
    """Counts while operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = {}  # storage → kind
        self.living = Counter()  # kind → bytes
        self.begin_step()

    def begin_step(self) -> None:
        self.peak = Counter()
        self.moment = ""
        self.sent = Counter()
        self.waits = []

    @classmethod
    def ignore_compile_internals(cls):
        return True  # the compiler traces without this mode

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None):
        name = func._opname
        if name == "_local_scalar_dense":
            self.note_wait()
            # Any value will do. The optimizer's first step reads an order of sending: 0, 1, 2 … is one.
            return args[0].dtype == torch.bool or len(self.waits) - 1
        if func.namespace == "c10d":
            self.sent[name.strip("_")] += max(tensor.nbytes for tensor in _tensors(args))
        result = func(*args, **(kwargs or {}))
        is_copy = name in CASTS and self.kinds.get(_storage(args[0])) == "weights"
        for tensor in _tensors(result):
            self.hold(tensor, "weights in the compute dtype" if is_copy else _kind_here())
        return result

    def hold(self, tensor: Tensor, kind: str) -> None:
        """Count a tensor's memory until it is freed, unless it is counted already."""
        storage = _storage(tensor)
        size = tensor.untyped_storage().nbytes()
        if storage in self.kinds:
            return
        self.kinds[storage] = kind
        self.living[kind] += size
        weakref.finalize(tensor.untyped_storage(), self._free, storage, size)
        if self.living.total() > self.peak.total():
            self.peak = Counter(self.living)
            self.moment = kind

    def _free(self, storage: int, size: int) -> None:
        self.living[self.kinds.pop(storage)] -= size

    def note_wait(self) -> None:
        """Note the line of code at which the host waits for the device."""
        other_code = *torch.__path__, __file__
        calls = [call for call in traceback.extract_stack() if not call.filename.startswith(other_code)]
        self.waits.append(traceback.format_list(calls)[-1])

    def copy_to_host(self, tensor: Tensor):
        """Stand for `Tensor.cpu`, which no operator shows."""
        self.note_wait()
        return tensor


def _tensors(tree: Any):
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.layout == torch.strided]  # a sparse tensor's values are counted alone


def _storage(tensor: Tensor):
    return tensor.untyped_storage()._cdata


def _kind_here():
    frame = sys._getframe()
    while frame:
        for code, kind in KIND_OF_CODE:
            if frame.f_code is code:
                return kind
        frame = frame.f_back
    return "other"


def rehearse(
    build: Callable[[Runtime], TrainingLoop],
    ranks: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    on: str = "cuda",
    steps: int = 1,
):
    """Return the figures of the training steps of a loop, which `build` makes of fake tensors.

    on: cuda or cpu, the device whose loss is taken. Code that this process has compiled before is forgotten.
    """
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    meter = _Meter()
    graphs = []
    with (
        _pretend_device(on, ranks),
        torch.compiler.set_stance("default", force_backend=BACKEND),
        FakeTensorMode(),
        patch.object(Tensor, "cpu", lambda tensor: meter.copy_to_host(tensor)),
        without_garbage_collection(),  # as in the loop: a cycle of references keeps its memory
    ):
        loop = build(Runtime(torch.device("cpu"), dtype, "sdpa", world_size=ranks))  # keeps what fused attention keeps
        loop.model.compiled = on == "cuda"  # the loss
        for kind, tensors in resident(loop).items():
            for tensor in tensors:
                meter.hold(tensor, kind)
        with meter:
            for _ in range(steps):
                meter.begin_step()
                counters.clear()
                loop.launch([])
                graphs.append(counters["stats"]["unique_graphs"])
    memory = {kind: size for kind, size in meter.peak.items() if size}
    return Rehearsal(memory, meter.moment, dict(meter.sent), meter.waits, graphs, list(counters["graph_break"]))


def resident(loop: TrainingLoop):
    """Return everything that stays in memory between two steps, by kind."""
    stacks = loop.optimizer._stacks
    layers = [module for module in loop.model.modules() if isinstance(module, fp8.Float8Linear)]
    return {
        "weights": [stack.values for stack in stacks],
        "gradients": [stack.grads for stack in stacks],
        "optimizer": [state for stack in stacks for state in (stack.updates, *stack.states.values())],
        "summed gradients": [stack.reduced for stack in stacks],  # on one rank, the gradients
        "fp8 copies": [tensor for layer in layers for tensor in layer.quantized],
        "other": list(loop.model.buffers()),
    }


@contextmanager
def _pretend_device(device: str, ranks: int):
    """Choose the loss of a device for tensors labelled cpu, and join ranks that do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with (
            patch.dict(cross_entropy.CHUNK_BYTES, cpu=cross_entropy.CHUNK_BYTES[device]),
            patch.dict(cross_entropy.ALIGNED, cpu=cross_entropy.ALIGNED[device]),
            # Compiled, it stores the losses and the gradient alone.
            patch.object(
                cross_entropy,
                "compiled_form",
                lambda: lambda logits, *_: (torch.empty(len(logits)), torch.empty_like(logits)),
            ),
            # A cache would mix real masks with fake ones.
            patch.object(attention, "_cached_mask", attention._cached_mask.__wrapped__),
        ):
            yield
    finally:
        dist.destroy_process_group()
