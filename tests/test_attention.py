"""Every path against the plain twin, and the twin against a loop that a reader can check by eye."""

import math
from dataclasses import replace

import pytest
import torch
from conftest import cells, each_row
from models import fake_flash
from torch.testing import assert_close

import nanochat.attention as paths
from nanochat import models
from nanochat.attention import attend, find_path, make_mask
from nanochat.gpt import GPTConfig
from nanochat.models import build_model, usual_path
from nanochat.runtime import Runtime

CPU = torch.device("cpu")
# name → (queries, keys, what else is asked). positions are drawn for three rows.
CASES = """
causal = 256, 256, {}
odd = 201, 201, {}
tiny = 1, 1, {}
window = 300, 300, {"window": 37}
window of one = 150, 150, {"window": 1}
one more token = 1, 77, {}
one more token, window = 1, 77, {"window": 20}
a chunk more, window = 130, 333, {"window": 50}
positions = 5, 90, {"positions": True}
positions, window = 150, 190, {"positions": True, "window": 33}
"""
CASES = {name: eval(case) for name, case in cells(CASES, " = ")}


def attention(q, k, v, path, scale=0.25, **options):
    return attend(q, k, v, make_mask(path, q.shape[1], k.shape[1], q.device, **options), scale)


def tensors(case, kv_heads=2, dtype=torch.float32, device="cpu"):
    queries, keys, asked = CASES[case]
    generator = torch.Generator().manual_seed(7)
    draw = lambda length, number: torch.randn(3, length, number, 16, generator=generator).to(device, dtype)  # noqa: E731
    q, k, v = draw(queries, 4), draw(keys, kv_heads), draw(keys, kv_heads)
    options = {"window": asked.get("window", 0)}
    stands = torch.arange(keys - queries, keys).expand(3, -1)
    if "positions" in asked:  # rows of unequal lengths
        stands = stands - torch.randint(0, keys - queries + 1, (3, 1), generator=generator)
        options["positions"] = stands.to(device)
    return (q, k, v), options


def result_and_gradients(given, path, options):
    given = [x.detach().clone().requires_grad_() for x in given]
    out = attention(*given, path, **options)
    out.backward(torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype))
    return [out.detach(), *(x.grad for x in given)]


def by_hand(q, k, v, window, positions, scale):
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            here = positions[b, i].item() if positions is not None else k.shape[1] - q.shape[1] + i
            low = max(0, here - window + 1) if window else 0
            for h in range(q.shape[2]):
                kv = h // (q.shape[2] // k.shape[2])
                weights = torch.softmax(k[b, low : here + 1, kv] @ q[b, i, h] * scale, 0)
                out[b, i, h] = weights @ v[b, low : here + 1, kv]
    return out


@pytest.mark.parametrize("case", ["tiny", "one more token, window", "positions", "positions, window"])
def test_the_twin_is_attention(case) -> None:
    given, options = tensors(case)
    expected = by_hand(*given, options["window"], options.get("positions"), 0.7)
    assert_close(attention(*given, path="twin", scale=0.7, **options), expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("path", ["chunks", "sdpa", "flex"])
def test_paths_are_the_twin(path, case) -> None:
    given, options = tensors(case, kv_heads=4 if "window" in case else 1)
    if path == "flex":  # which has no gradient on a CPU
        ours, twin = (attention(*given, name, **options) for name in (path, "twin"))
    else:
        ours, twin = (result_and_gradients(given, name, options) for name in (path, "twin"))
    assert_close(ours, twin, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_scores_that_are_bounded_need_no_shift(case) -> None:
    (q, k, v), options = tensors(case)
    q, k = (3.8 * torch.nn.functional.rms_norm(x, x.shape[-1:]) / 16**0.25 for x in (q, k))
    expected = result_and_gradients((q, k, v), "twin", {**options, "scale": 1.0})
    results = result_and_gradients((q, k, v), "chunks", {**options, "scale": 1.0, "bounded": True})  # scores up to 58
    for found, wanted in zip(results, expected, strict=True):
        assert_close(found, wanted, rtol=1e-4, atol=1e-4 + 1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("path", "dtype"), [("chunks", torch.bfloat16), ("chunks", torch.float16), ("sdpa", torch.bfloat16)]
)
def test_half_precision(path, dtype) -> None:
    given, options = tensors("window", dtype=dtype)
    expected = result_and_gradients([x.float() for x in given], "twin", options)
    for ours, exact in zip(result_and_gradients(given, path, options), expected, strict=True):
        assert ours.dtype == dtype
        assert (ours.float() - exact).norm() < 8 * torch.finfo(dtype).eps * exact.norm()


def test_a_mask_made_in_inference_mode_serves_training() -> None:
    given, options = tensors("window")
    for path in ("chunks", "sdpa"):
        options["window"] += 1  # a mask that no other test has made
        with torch.inference_mode():
            attention(*given, path, **options)
        result_and_gradients(given, path, options)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("path", ["flash3", "flash4", "flex", "sdpa"])
def test_paths_are_the_twin_on_a_gpu(path, case) -> None:
    lacks = path in paths.FLASH and paths.obstacle(path, torch.device("cuda"), torch.bfloat16)
    if lacks:
        pytest.skip(f"{path}: {lacks}")
    given, options = tensors(case, dtype=torch.bfloat16, device="cuda")
    given = [torch.cat([x] * 4, dim=-1) for x in given]  # heads of 64, which every kernel takes
    expected = result_and_gradients([x.float() for x in given], "twin", options)
    for ours, exact in zip(result_and_gradients(given, path, options), expected, strict=True):
        assert (ours.float() - exact).norm() < 0.03 * exact.norm() + 1e-3 * math.sqrt(exact.numel())


FLASH = """
9 | right | flash3 | flash4 | no package
9 | wrong | flex | flash3 | it computes wrong values here
10 | right | flex | flash4 | no package
8 | right | flex | flash3 | it has no kernels for this device
7 | right | sdpa | flash3 | it has no kernels for this device
"""


@each_row("family package path asked reason", FLASH)
def test_flash_attention_runs_where_it_can_and_its_values_are_right(
    family, package, path, asked, reason, monkeypatch
) -> None:
    fake_flash(monkeypatch, ignores_windows=package == "wrong")
    trial = paths._trial_error

    def tried(path: str, device: torch.device, dtype: torch.dtype):
        if path == "flash4":
            raise ImportError("no package")
        return trial(path, CPU, torch.float32)

    monkeypatch.setattr(paths, "_trial_error", tried)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (int(family), 0))
    paths.obstacle.cache_clear()
    gpu = torch.device("cuda")
    usual = usual_path(gpu, windows=True, row_length=0)
    assert find_path("auto", gpu, torch.bfloat16, usual) == path
    with pytest.raises(ValueError, match=f"--attention={asked} cannot run: {reason}"):
        find_path(asked, gpu, torch.bfloat16, usual)
    paths.obstacle.cache_clear()


@pytest.mark.parametrize(
    ("usual", "others", "path"),
    [
        ("flex", ["flex", "flash3"], "flex"),  # what they say: without a package, and with one
        ("sdpa", ["sdpa", "flash3"], "sdpa"),
        ("flex", ["sdpa", "sdpa"], "sdpa"),  # a GPU before Ampere beside a newer one
    ],
)
def test_ranks_that_could_run_different_kernels_take_a_common_one(usual, others, path, monkeypatch) -> None:
    told = iter(others)
    monkeypatch.setattr(models, "usual_path", lambda *_: usual)
    monkeypatch.setattr(
        Runtime, "all_gather", lambda self, found: [found, next(told) if isinstance(found, str) else ()]
    )
    monkeypatch.setattr(
        Runtime, "copy_from", lambda self, source, numbers: numbers
    )  # the other rank's share stays empty
    config = GPTConfig(64, depth=2, width=64, heads=2, kv_heads=2, max_seq_len=256)
    assert build_model(config, Runtime(CPU, torch.float32, world_size=2), 1).attention == path


def test_a_cpu_computes_forward_and_long_rows_without_windows_with_torchs_kernel() -> None:
    runtime = Runtime(CPU, torch.float32)
    for letters, length, path in [
        ("L", 0, "sdpa"),
        ("SL", 0, "sdpa"),
        ("L", 1023, "chunks"),
        ("L", 1024, "sdpa"),
        ("SL", 1024, "chunks"),
    ]:
        config = GPTConfig(64, depth=2, width=64, heads=2, kv_heads=2, max_seq_len=2048, window_pattern=letters)
        assert build_model(config, runtime, 1, row_length=length).attention == path
        asked = replace(runtime, attention="flex")
        assert build_model(config, asked, 1, row_length=length).attention == "flex"


def test_a_flag_names_the_path_and_blackwell_gets_larger_blocks_of_queries(monkeypatch) -> None:
    for family, size in ((9, (128, 128)), (10, (256, 128))):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, family=family: (family, 0))
        assert size == paths._block_mask("flash4", 512, 512, 129, CPU).BLOCK_SIZE
    assert find_path("twin", CPU, torch.float32, "chunks") == "twin"
    assert find_path("auto", CPU, torch.bfloat16, "chunks") == "chunks"
    assert usual_path(torch.device("meta"), windows=True, row_length=256) == "sdpa"  # MPS, say
    with pytest.raises(ValueError, match=r"^--attention=magic is not known, use one of auto, chunks"):
        find_path("magic", CPU, torch.float32, "chunks")
    with pytest.raises(ValueError, match=r"^--attention=flash3 cannot run: it has no kernels for this device$"):
        find_path("flash3", CPU, torch.float32, "chunks")
