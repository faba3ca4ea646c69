import random
import re
from types import SimpleNamespace

import pytest

from nanochat.hardware import Accelerator, find_accelerator
from nanochat.log import duration
from nanochat.scaling import (
    ASSUMED_MFU,
    BLOCK_KEEPS,
    HORIZONS,
    accumulation_steps,
    cost,
    legal_rows,
    memory,
    scale,
    shape,
)


def n_of(depth: int, vocab: int = 32768, **options) -> int:
    """Matrices and head of the plain block: 4 of width² for attention, 8 for the MLP."""
    width = shape(depth, **options)["width"]
    return 12 * depth * width**2 + width * vocab


def scaled(depth: int, vocab: int = 32768, batch: int | None = None, note=lambda line: None, head_dim=128, **horizon):
    n, reference = n_of(depth, vocab, head_dim=head_dim), n_of(12, vocab, head_dim=head_dim)
    return scale(n, reference, 6 * n, horizon, total_batch_size=batch, note=note)


@pytest.mark.parametrize(("depth", "width"), [(1, 128), (4, 256), (5, 384), (12, 768), (20, 1280), (24, 1536)])
def test_width_and_heads_follow_from_depth(depth, width):
    made = shape(depth)
    assert made == {"depth": depth, "width": width, "heads": width // 128, "kv_heads": width // 128}


def test_all_of_a_shape_can_be_given():
    made = shape(4, head_dim=64, aspect_ratio=48, kv_heads=1)
    assert made == {"depth": 4, "width": 192, "heads": 3, "kv_heads": 1}
    assert shape(4, head_dim=64, width=320)["width"] == 320
    with pytest.raises(ValueError, match=r"--width=300 .* take 320"):
        shape(4, head_dim=64, width=300)
    with pytest.raises(ValueError, match=r"--kv-heads=5 does not divide 12 heads: take 3, 4 or 6"):
        shape(24, kv_heads=5)
    for wrong in ({"depth": 0}, {"depth": 4, "head_dim": 0}, {"depth": 4, "width": 0}, {"depth": 4, "kv_heads": 0}):
        with pytest.raises(ValueError):
            shape(**wrong)


@pytest.mark.parametrize(
    ("depth", "power"),
    [(8, 18), (10, 19), (12, 19), (16, 19), (18, 20), (24, 20), (26, 20), (32, 21)],
)
def test_batch_grows_with_depth(depth, power):
    assert scaled(depth).total_batch_size == 2**power


def test_depth_24_at_ratio_8():
    lines = []
    made = scaled(24, target_param_data_ratio=8, note=lines.append)
    assert (made.total_batch_size, made.steps, made.seconds) == (2**20, 5568, None)
    assert made.total_batch_size * made.steps == pytest.approx(5.84e9, rel=1e-3)
    assert 0.02 * made.rates == pytest.approx(0.0283, abs=5e-5)
    assert 0.28 * made.weight_decay == pytest.approx(0.060, abs=5e-4)
    assert lines[0].startswith("total_batch_size 1,048,576 = 2^19 x ")
    assert lines[-1] == "num_iterations 5,568 = 8 x N / total_batch_size"


def test_the_reference_is_left_as_it_is():
    made = scaled(12)
    assert (made.total_batch_size, made.rates, made.weight_decay) == (2**19, 1, 1)


def test_the_scale_of_a_cpu():
    made = scaled(4, vocab=4096, batch=4096, head_dim=64, num_iterations=20)
    assert (made.total_batch_size, made.steps) == (4096, 20)
    assert made.rates == (4096 / 2**19) ** 0.5
    assert accumulation_steps(4096, 8, 512, 1) == 1


def test_horizons():
    n = n_of(8)
    assert scaled(8).steps == 12 * n // 2**18
    assert scaled(8, num_iterations=7).steps == 7
    assert scaled(8, target_flops=6 * n * 2**18 * 100.4).steps == 100
    assert scaled(8, target_param_data_ratio=1e-9).steps == 1
    made = scaled(8, target_seconds=60)
    assert (made.steps, made.seconds) == (None, 60)
    with pytest.raises(ValueError, match="--num-iterations=7 and --target-seconds=60 are 2 horizons"):
        scaled(8, num_iterations=7, target_seconds=60, target_flops=None)
    for name in HORIZONS:
        with pytest.raises(ValueError, match="more than 0"):
            scaled(8, **{name: 0})


def test_every_value_is_told_with_where_it_comes_from():
    lines = []
    shape(4, kv_heads=1, note=lines.append)
    assert lines == [
        "width 256 = depth 4 x aspect_ratio 64, up to a multiple of head_dim 128",
        "heads 2 = width / head_dim 128",
        "kv_heads 1 = given",
    ]
    lines.clear()
    scaled(4, batch=4096, target_seconds=60, note=lines.append)
    assert [line.split(" = ")[0] for line in lines] == [
        "total_batch_size 4,096",
        "learning rates x 0.08839",
        f"weight decay x {0.08839 * n_of(12) / n_of(4):.4g}",
        "num_iterations ?",
    ]


def test_legal_batches_against_a_plain_search():
    seed = random.randrange(1000)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        total, rows = generator.randrange(1, 400), generator.randrange(0, 20)
        length, ranks = generator.randrange(1, 9), generator.randrange(1, 5)
        if rows and total % (rows * length * ranks) == 0:
            assert accumulation_steps(total, rows, length, ranks) * rows * length * ranks == total
            assert rows in legal_rows(total, length, ranks)
            continue
        with pytest.raises(ValueError, match="take --"):
            accumulation_steps(total, rows, length, ranks)


def test_an_impossible_batch_names_the_nearest_possible():
    with pytest.raises(ValueError) as caught:
        accumulation_steps(524288, 24, 2048, 8)
    assert str(caught.value) == (
        "--device-batch-size=24 (x 2048 tokens x 8 ranks) does not divide --total-batch-size=524288: "
        "take --device-batch-size=8, 16 or 32, or --total-batch-size=393216 or 786432"
    )
    with pytest.raises(ValueError, match=r"--total-batch-size=5000 .* take --total-batch-size=4608 or 5120"):
        accumulation_steps(5000, 8, 512, 1)
    with pytest.raises(ValueError, match=r"take --total-batch-size=1024$"):
        legal_rows(100, 512, 2)
    assert legal_rows(12 * 512, 512, 1) == [1, 2, 3, 4, 6, 12]


D24 = SimpleNamespace(**shape(24))
COUNTS = {"matrices": 679_478_976, "head": 50_331_648, "total": 1_384_000_000}


def test_memory():
    plain = memory(COUNTS, D24, 16, 2048, 8, logits=512 << 20)
    alone = memory(COUNTS, D24, 16, 2048, 1, logits=512 << 20)
    assert alone["optimizer"] == 8 * plain["optimizer"]
    assert plain["activations"] == 16 * 2048 * 1536 * 24 * BLOCK_KEEPS * 2
    again = memory(COUNTS, D24, 16, 2048, 8, logits=512 << 20, checkpointing=True)
    assert again["activations"] * 11 < plain["activations"]
    assert 40e9 < sum(plain.values()) < 80e9  # the public reference runs this on 80 GB


def test_a_block_keeps_what_the_estimate_says():
    torch, gpt = pytest.importorskip("torch"), pytest.importorskip("nanochat.gpt")

    def kept(depth: int) -> int:
        config = gpt.GPTConfig(vocab_size=512, depth=depth, width=256, heads=4, max_seq_len=256, window_pattern="L")
        model = gpt.GPT(config)
        model.init_weights(0)
        model.compute_dtype = torch.bfloat16
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        seen = {}

        def pack(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no other takes its place
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.hidden(torch.zeros(2, 256, dtype=torch.int64))
        return sum(tensor.untyped_storage().nbytes() for place, tensor in seen.items() if place not in own)

    casts = 12 * 256**2 * 2  # weights in the compute dtype
    assert ((kept(8) - kept(4)) / 4 - casts) / (2 * 256 * 256 * 2) == pytest.approx(BLOCK_KEEPS, rel=0.05)


def test_time_and_dollars():
    sentence = cost(5.84e9 * 4.77e9, 8, find_accelerator("H100"), "bf16", (0.59 * 989.4e12, "d24"))
    seconds = 5.84e9 * 4.77e9 / (8 * 989.4e12 * 0.59)
    assert seconds / 60 == pytest.approx(99.4, rel=0.01)  # what the public reference took, at the MFU it had
    price = f"dollars {24 * seconds / 3600:.2f} at 3.00 an hour each"
    assert sentence == f"time 1h39m on 8xH100, 59% MFU (measured: run d24) of 989 TFLOP/s each; {price}"
    slower = cost(5.84e9 * 4.77e9, 8, find_accelerator("H100"), "bf16")
    assert slower.startswith(f"time {duration(seconds * 0.59 / ASSUMED_MFU)} on 8xH100, 40% MFU (assumed)")


def test_unknown_hardware_is_not_available():
    assert cost(1e15, 1, Accelerator("Q9"), "bf16") == "time n/a, dollars n/a: no bf16 peak rate is known of 1xQ9"
    timed = cost(1e15, 2, Accelerator("Q9"), "bf16", (1e12, "d4"))
    assert timed == "time 8m20s on 2xQ9, 1,000 GFLOP/s each (measured: run d4), MFU n/a; dollars n/a"
    sentence = cost(1e15, 2, find_accelerator("L4"), "bf16")
    assert re.match(r"time \d", sentence)
    assert sentence.endswith("dollars n/a")
