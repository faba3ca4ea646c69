"""Checks of our own scorer on an artifact, in the process that scores: it keeps the rules that a judge asks of others.

Its bytes do not count, as the scoring process does not import it. tracks.golf.eval runs `check_files` before it scores.
"""

import json
import lzma
import math
import struct
import zlib
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rustbpe
from nanochat.errors import UserError
from nanochat.gpt import GPT
from tracks.golf.artifact import FULL, LZMA, MAGIC, SCALARS, group_of, read_artifact
from tracks.golf.score import encode, load

PLACES = 10_000
SUM_ERROR = 1e-3  # of probabilities over the vocabulary
SAME = 1e-4  # nats


def weights_hash(model: GPT) -> str:
    """Return a hash of a model's weights."""
    return sha256(b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def losses_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the scorer's loss of each target, in nats."""
    return model(inputs, targets, reduction="none").view(targets.shape).double()


def expand(compressor: str, packed: bytes) -> bytes:
    """Return what a section holds; a UserError if its stream does not end where the section does."""
    stream = zlib.decompressobj()
    if compressor == "lzma":
        stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=LZMA)
    found = stream.decompress(packed)
    if not stream.eof or stream.unused_data:
        raise UserError("bytes: a part of the artifact goes on behind the end of its stream")
    return found


def require_whole(data: bytes) -> None:
    """Raise a UserError for bytes of an artifact that the model and its vocabulary do not come from.

    A decompressor ignores what follows its stream, and a reader what follows the last tensor. The vocabulary does not
    count, so bytes behind it would cost nothing.
    """
    start = len(MAGIC) + 32  # behind the hash
    size, length = struct.unpack_from("<II", data, start)
    place = start + 8 + length
    header = json.loads(expand("zlib", data[start + 8 : place]))
    held = []
    for group, bits, compressor, packed in header["sections"]:
        held.append((group, bits, len(expand(compressor, data[place : place + packed]))))
        place += packed
    needed = Counter()
    for name, shape, bits in header["tensors"]:
        if bits != FULL:
            needed[group_of(name), bits] += math.prod(shape)
        needed[SCALARS, FULL] += 2 * math.prod(shape if bits == FULL else shape[:1])  # bytes of fp16
    if sorted(held) != sorted((*key, count) for key, count in needed.items()):
        raise UserError("bytes: the sections of the artifact have other values than its tensors")
    if place != start + 4 + size:
        raise UserError("bytes: the parts of the artifact are not as long as its header says")
    expand("lzma", data[place:])


def check_files(folder: str, rows: int, device: str) -> dict[str, Any]:
    """Return what was checked of the file `artifact` on the file `text`; a UserError for a rule that it breaks."""
    data = Path(folder, "artifact").read_bytes()
    artifact = read_artifact(data)
    if sum(artifact.bytes.values()) != len(data):
        raise UserError("bytes: the parts of the artifact are not the whole file")
    require_whole(data)
    model = load(artifact, device)
    ids = encode(json.loads(Path(folder, "text").read_bytes()), rustbpe.Tokenizer(**artifact.vocabulary))
    length = min(model.config.max_seq_len, len(ids) - 1)
    count = min(-(-PLACES // length), (len(ids) - 1) // length)
    inputs = ids[: count * length].view(count, length).to(device)
    targets = ids[1 : count * length + 1].view(count, length).to(device)
    before = weights_hash(model)
    dice = torch.Generator().manual_seed(len(data))
    largest = {"sum": 0.0, "causal": 0.0, "again": 0.0}
    with torch.inference_mode():
        for some, goals in zip(inputs.split(rows), targets.split(rows), strict=True):
            losses = losses_of(model, some, goals)
            again = (losses_of(model, some, goals) - losses).abs().max().nan_to_num(math.inf).item()
            largest["again"] = max(largest["again"], again)
            if again > SAME and not losses.isnan().any():
                raise UserError("score first: the same text has other scores once it was scored")
            chances = model(some).double().softmax(-1)
            sums = (chances.sum(-1) - 1).abs().max().item()
            # The loss is that of this distribution.
            own = (chances.gather(-1, goals[..., None])[..., 0].log() + losses).abs().max().item()
            largest["sum"] = max(largest["sum"], sums)
            if not (sums <= SUM_ERROR and own <= SUM_ERROR):  # also for NaN
                raise UserError(f"normalised: probabilities are off by {max(sums, own):.1e}")
            changed = some.clone()
            places = torch.randint(1, length, (len(some),), generator=dice).tolist()
            for row, place in zip(changed, places, strict=True):
                row[place] = (row[place] + 1) % model.config.vocab_size
            other = losses_of(model, changed, goals)
            for place, one, two in zip(places, losses, other, strict=True):
                largest["causal"] = max(largest["causal"], (one - two)[:place].abs().max().nan_to_num(math.inf).item())
    if largest["causal"] > SAME:
        raise UserError(f"causal: a changed token moves earlier scores by {largest['causal']:.1e} nats")
    if weights_hash(model) != before:
        raise UserError("score first: the model has learned from the text that it scored")
    return {"places": count * length, "rows": count, "bytes": len(data), **largest}
