"""A run on 1 to 64 ranks, without processes: the loader and the optimizer of a run, opened for each rank in turn.

    python -m tracks.scale.simulate
    python -m tracks.scale.simulate --tokens 200
    python -m tracks.scale.simulate --hardware

The first command prints the rows and text that ranks read, then for each depth and number of ranks: bytes that a rank
owns (weights and optimizer states that it updates), holds and sends in a step, bytes that all ranks read when a run
resumes, and the checkpoint. Tensors are on the meta device: they have sizes and no memory. `--tokens` streams so many
million tokens of the last of 64 ranks, in a process of its own, and prints its peak memory after each tenth of them
(Linux only). `--hardware` prints the tables of tracks/scale/many_gpus.md.
"""

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from bench.common import parser_of, peak_memory, required
from bench.findings import Findings
from nanochat.data.corpus import Shard, open_corpus
from nanochat.dataloader import TextLoader
from nanochat.gpt import GPTConfig
from nanochat.hardware import parse_hardware
from nanochat.log import Record, markdown_table, table_of
from nanochat.models import new_model
from nanochat.optim import MuonStack, Optimizer
from nanochat.param_groups import Rates, build_groups, group_rates
from nanochat.runtime import Runtime
from nanochat.scaling import plan_run
from nanochat.settings import OptimizerSettings
from nanochat.sharding import Shards, Unit
from nanochat.tokenizer import Tokenizer
from scripts.base_train import Config

if TYPE_CHECKING:
    import pyarrow as pa

RANKS = (1, 2, 3, 8, 16, 32, 64)
DEPTHS = (8, 12, 20, 24, 32, 40)
LANES = 192  # the default of 64 cannot be shared by 3 ranks
LENGTH = 256  # of a row
MOST_SHARES = 1.1  # of a rank


# ---- the stream ----


def make_loader(data: str, rank: int, ranks: int, rows: int, length: int = LENGTH) -> TextLoader:
    """Return the loader of a rank as a run opens it. rows: in a batch, of all ranks."""
    corpus = open_corpus(data)
    tokenizer = Tokenizer.train([corpus.sources[0].shards["train"][0].read_row_group(0)], 1_024)
    return TextLoader(corpus, tokenizer, rows, length, lanes=LANES, rank=rank, world_size=ranks)


def first_batch(data: str, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first batch in the order of the stream, and the bytes of text that each rank reads for its rows."""
    batch = np.zeros((LANES, LENGTH), np.int64)
    read = np.zeros(ranks, np.int64)
    read_group = Shard.read_row_group

    def counted(shard: Shard, group: int) -> "pa.Array":
        texts = read_group(shard, group)
        read[rank] += texts.nbytes
        return texts

    for rank in range(ranks):
        loader = make_loader(data, rank, ranks, LANES)
        with patch.object(Shard, "read_row_group", counted):
            made, _ = next(loader._make_batches())  # without the thread, which would read on
        batch[rank::ranks] = made[0]
    return batch, read


def peaks(data: str, tokens: float, ranks: int = 64) -> list[int]:
    """Stream tokens of the last rank; return the peak memory in MB after each tenth of them."""
    loader = make_loader(data, ranks - 1, ranks, 8 * ranks, 2_048)
    seen = 0
    found = []
    for tenth in range(1, 11):
        while seen < tokens * tenth / 10:
            seen += next(loader)[0].numel()
        found.append(round(peak_memory()))
    return found


# ---- optimizer and checkpoint ----

Build = Callable[[GPTConfig, int, int], Optimizer]  # from a shape, a rank and the number of ranks


def _rates(shape: GPTConfig) -> dict[str, Rates]:
    return group_rates(OptimizerSettings(), shape.width, 1.0, matrix_decay=0.1)


def whole_weights(shape: GPTConfig, rank: int, ranks: int) -> Optimizer:
    """Return the optimizer of a rank that holds all weights, on the meta device."""
    return Optimizer(build_groups(new_model(shape), _rates(shape)), rank, ranks)


def sharded_weights(shape: GPTConfig, rank: int, ranks: int) -> Optimizer:
    """Return the optimizer of a rank that holds its shard of the weights (--shard-weights), on the meta device."""
    model = new_model(shape)
    place = Runtime(torch.device("meta"), torch.bfloat16, rank=rank, world_size=ranks)
    shards = Shards(model, model.get_parameter, place)
    return Optimizer(build_groups(model, _rates(shape)), rank, ranks, stacking=shards)


def bytes_of(shape: GPTConfig, ranks: int, build: Build = whole_weights) -> dict[str, float]:
    """Return the bytes of the last rank (all have as many) and of the checkpoint, and the number of its files."""
    optimizer = build(shape, ranks - 1, ranks)
    stacks = optimizer._stacks
    stack_of = {name: stack for stack in stacks for name, _ in stack.members}
    weights = saved = sum(parameter.nbytes for stack in stacks for _, parameter in stack.members)

    def read(name: str) -> dict[str, torch.Tensor]:
        nonlocal saved
        layouts = stack_of[name].layouts.items()
        states = {key: torch.empty(layout.shape, device="meta") for key, layout in layouts}
        saved += sum(state.nbytes for state in states.values())
        return states | {"step": torch.zeros((), device="meta")}

    optimizer.load_state_tensors(read)  # whole states, on each rank
    mine = sum(stack.mine.nbytes for stack in stacks)
    states = sum(state.nbytes for stack in stacks for state in stack.states.values())
    others = (ranks - 1) / ranks  # a part of everything; a ring sends ranks - 1 shards for a gather or a scatter
    if isinstance(optimizer.stacking, Shards):
        units = optimizer.stacking.units
        gathered = max(sum(piece.gathered.nbytes for piece in unit.pieces) for unit in units.values())
        sent = sum(gathers(unit) for unit in units.values()) * others
        # Gradients are scattered. For Muon, whole matrices are dealt and come back.
        sent += (mine * ranks + sum(2 * stack.mine.nbytes for stack in stacks if isinstance(stack, MuonStack))) * others
    else:
        gathered = 0
        sent = 2 * mine * ranks * others  # gradients are scattered, and weights gathered
    tensors = [tensor for stack in stacks for tensor in (*vars(stack).values(), *stack.states.values())]
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return {
        "owned": mine + states,
        "held": sum({storage._cdata: storage.nbytes() for storage in storages}.values()) + gathered,  # views share one
        "sent": sent,
        # Everything once, for the hashes. Then each rank reads its states, and the weights that it holds.
        "read": saved + ranks * (states + (mine if gathered else weights)),
        "saved": saved,
        "files": ranks + 2,  # of states; the model, the manifest
    }


def gathers(unit: Unit) -> int:
    """Return the bytes that a unit gathers in a step: for the forward, and for a backward that needs its weights."""
    times = 1 if isinstance(unit.places[0][0], nn.Embedding) else 2
    return times * sum(piece.gathered.nbytes for piece in unit.pieces)


def shares(shape: GPTConfig, ranks: int, build: Build = whole_weights) -> float:
    """Return the bytes that a rank owns, in equal parts of everything: 1 is as little as can be."""
    return bytes_of(shape, ranks, build)["owned"] * ranks / bytes_of(shape, 1, build)["owned"]


def shape_of(depth: int) -> GPTConfig:
    return plan_run(Config(depth=depth), 32_768).model


# ---- tables ----


def stream_table(data: str) -> Record:
    alone, once = first_batch(data, 1)
    rows = []
    for ranks in RANKS:
        batch, read = first_batch(data, ranks)
        rows.append(
            [ranks, str(np.array_equal(batch, alone)), read.max() / 1e6, read.sum() / 1e6, read.sum() / once[0]]
        )
    titles = "ranks | rows of one rank | MB of text read by a rank:.1f | by all:.1f | times one rank's:.1f"
    return table_of("", titles, rows)


def bytes_table(build: Build) -> Record:
    rows = []
    for depth, ranks in product(DEPTHS, RANKS):
        *sizes, files = bytes_of(shape_of(depth), ranks, build).values()
        rows.append([depth, ranks, shares(shape_of(depth), ranks, build), *(size / 1e9 for size in sizes), files])
    titles = "depth | ranks | shares:.2f | owned, GB:.2f | held:.2f | sent:.2f | read by all:,.2f | saved:.2f | files"
    return table_of("", titles, rows)


def _known(figure: float | None) -> float:
    assert figure is not None  # of these machines all are known
    return figure


def hardware_table() -> Record:
    """Return the comparison of machines with one RTX 3090 by peaks: bounds, not times."""
    _, own = parse_hardware("RTX-3090")
    rows = []
    for machine in ("1xRTX-3090@0", "8xH100", "8xH200", "8xH100@98"):
        count, one = parse_hardware(machine)
        peaks = [count * _known(one.bf16), count * _known(one.bandwidth)]
        times = [peaks[0] / _known(own.bf16), peaks[1] / _known(own.bandwidth)]
        price = count * _known(one.dollars)
        rows.append(
            [machine, *peaks, count * _known(one.memory), *times, price, *(worth(price, each) for each in times)]
        )
    titles = "machine | TFLOP/s:,.0f | GB/s:,.0f | GB:,.0f | by TFLOP/s:.1f | by GB/s:.1f"
    titles += " | $ an hour:g | pays above $, by TFLOP/s:.2f | by GB/s:.2f"
    return table_of("", titles, rows)


def worth(price: float, times: float) -> float | None:
    """Return the dollars that an hour of yours must be worth, to rent at a price what is so many times as fast.

    A job takes T hours on your own machine, which costs nothing more, and T / times on the other. None: never.
    """
    return price / (times - 1) if times > 1 else None


def main() -> None:
    parser = parser_of("scale", __doc__, tokens=0)  # in millions
    parser.add_argument("--data", default="world", help="text, as scripts.base_train takes it")
    parser.add_argument("--hardware", action="store_true")
    options = parser.parse_args()
    findings = Findings("simulate", options.json)
    tables = []
    if options.hardware:
        tables = [hardware_table()]
    elif options.tokens:
        found = required(peaks, options.data, options.tokens * 1e6)
        print(f"peak MB after each tenth of {options.tokens} M tokens: {found}")
        findings.add(tokens=options.tokens * 1e6, peaks=found)
        findings.finish()
        return
    else:
        tables = [stream_table(options.data), bytes_table(whole_weights), bytes_table(sharded_weights)]
    for table in tables:
        findings.keep(table)
    print("\n\n".join(map(markdown_table, tables)))
    findings.write()


if __name__ == "__main__":
    main()
