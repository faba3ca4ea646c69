"""The Triton kernel against the plain loss: in triton's interpreter on a CPU, compiled on a GPU."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from test_cross_entropy import assert_near, check_inside_a_graph, loss_and_gradients, plain, problem

from nanochat.cross_entropy import cross_entropy

pytest.importorskip("triton", reason="triton is not published for this platform")


def compare(device: str, seed: int) -> None:
    """Rows shorter than a block and longer, with padding and without; loss, gradients, and the loss alone."""
    for dtype, softcap, vocab, padded in (
        (torch.float32, 15.0, 37, 40),
        (torch.bfloat16, 0.0, 37, 37),
        (torch.float16, 15.0, 4100, 4160),
    ):
        hidden, weight, targets = problem(seed, dtype, 5, 16, vocab, padded, device=device)
        targets[1] = vocab - 1
        arguments = {"softcap": softcap, "vocab_size": vocab}
        ours = cross_entropy(hidden, weight, targets, **arguments, chunk=3, form="triton")
        expected = plain(hidden, weight, targets, **arguments)
        assert_near(*(loss_and_gradients(loss, hidden, weight) for loss in (ours, expected)), dtype)
        with torch.no_grad():
            each = cross_entropy(hidden, weight, targets, **arguments, reduction="none", form="triton")
        assert torch.allclose(each.sum(), ours, rtol=1e-5)
        assert not each[targets == -1].any()


def test_the_kernel_in_the_interpreter(python, seed):
    path = str(__file__).rpartition("/")[0]
    program = (
        f"import sys; sys.path.insert(0, {path!r}); import test_cross_entropy_triton as t; t.compare('cpu', {seed})"
    )
    done = python("-c", program, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_compiled_for_gpus_that_are_not_here(capability, tmp_path):
    """Everything stays in registers, and a load brings 16 bytes; vocabulary sizes are multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nanochat.cross_entropy_triton import _row_kernel

    signature = {"logits": "*bf16", "targets": "*i64", "losses": "*fp32"}
    signature |= dict.fromkeys(("stride", "vocab_size", "width"), "i32")
    constants = {"SOFTCAP": 15.0, "GRADIENT_SCALE": 1.0, "IGNORED": -1, "BLOCK": 4096}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(signature))}
    source = ASTSource(_row_kernel, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8}).asm
    (tmp_path / "kernel").write_bytes(compiled["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    shown = subprocess.run([tool, "--dump-resource-usage", tmp_path / "kernel"], capture_output=True, text=True).stdout
    used = {name: int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    assert used["REG"] <= 64
    assert (used["STACK"], used["LOCAL"]) == (0, 0)  # nothing was spilled
    loads = re.findall(r"ld\.global\S*", compiled["ptx"])
    assert [kind for kind in loads if kind != "ld.global.v4.b32"] == ["ld.global.b64"]  # one target of a row


@pytest.mark.gpu
def test_the_kernel_on_a_gpu(seed):
    compare("cuda", seed)


@pytest.mark.gpu
def test_the_kernel_inside_a_compiled_graph():
    check_inside_a_graph("triton", "cuda", "inductor")
