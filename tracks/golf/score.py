"""Golf scoring: a process of its own reads an artifact and a text, nothing else, and returns the bits per byte.

Every byte is scored once. The result lists the source files of this repository that the process has imported, because
their bytes count. tracks.golf.eval calls `score_files` in the sandbox.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rustbpe
from nanochat.errors import UserError
from nanochat.evals.rows import overlapping_rows
from nanochat.gpt import GPT
from tracks.golf.artifact import Artifact, read_artifact
from tracks.golf.model import GolfConfig, GolfGPT

ROOT = Path(__file__).parent.parent.parent


def load(artifact: Artifact, device: str) -> GPT:
    """Return the artifact's model."""
    with torch.device("meta"):
        model = GolfGPT(GolfConfig(**artifact.config))
    model.to_empty(device=device)
    model.load_state_dict(artifact.weights)
    model.attention = "chunks"  # on a GPU too, where fused kernels want half precision
    return model.eval().requires_grad_(False)


def encode(documents: Sequence[str], tokenizer: rustbpe.Tokenizer) -> Tensor:
    """Return the tokens of all documents, each after <|bos|>."""
    bos = tokenizer.special_tokens["<|bos|>"]
    return torch.tensor([token for text in documents for token in (bos, *tokenizer.encode(text).tolist())])


def score(
    model: GPT, ids: Tensor, lengths: Tensor, stride: int, rows: int, deadline: float = math.inf
) -> tuple[float, int, int]:
    """Return the summed loss in nats of tokens that stand for bytes, their bytes, and their number.

    The first row that has a token as target gives it the longest context. rows: at once. TimeoutError after the
    deadline, by the monotonic clock.
    """
    length = model.config.max_seq_len
    inputs, targets = overlapping_rows(ids, length, stride)
    nats = 0.0
    size = 0
    scored = 0
    for numbers in torch.arange(len(inputs)).split(rows):
        goals = targets[numbers]  # a copy
        goals[numbers > 0, : length - stride] = -1  # in the row before too
        goals[lengths[goals.clamp(min=0)] == 0] = -1  # special tokens stand for no bytes
        counted = goals[goals >= 0]
        size += int(lengths[counted].sum())
        scored += len(counted)
        losses = model(inputs[numbers].clamp(min=0).to(model.device), goals.to(model.device), reduction="none")
        nats += losses.double().sum().item()
        if time.monotonic() > deadline:
            raise TimeoutError("scoring took longer than allowed: use a longer --stride")
    return nats, size, scored


def sources() -> dict[str, int]:
    """Return the files of this repository that this process has imported, with their bytes."""
    files = {Path(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    own = [file for file in sorted(files) if file.is_relative_to(ROOT) and "site-packages" not in file.parts]
    return {str(file.relative_to(ROOT)): file.stat().st_size for file in own}


def score_files(folder: str, stride: int, rows: int, seconds: float, device: str) -> dict[str, Any]:
    """Return the score of the file `artifact` on the file `text`, a JSON list of documents, with its facts.

    stride: 0 for rows that do not overlap. seconds: limit for all of it.
    """
    started = time.monotonic()
    artifact = read_artifact(Path(folder, "artifact").read_bytes())
    text = Path(folder, "text").read_bytes()
    tokenizer = rustbpe.Tokenizer(**artifact.vocabulary)
    model = load(artifact, device)
    if tokenizer.vocab_size != model.config.vocab_size:
        raise UserError("the artifact has another tokenizer than its model: pack it again")
    documents = json.loads(text)
    ids = encode(documents, tokenizer)
    lengths = torch.from_numpy(tokenizer.token_lengths()).long()
    stride = stride or model.config.max_seq_len
    ready = time.monotonic()
    with torch.inference_mode():
        nats, size, scored = score(model, ids, lengths, stride, rows, started + seconds)
    assert size == sum(len(document.encode()) for document in documents)
    return {
        "bytes": size,
        "loss": nats / scored,
        "bpb": nats / math.log(2) / size,
        "seconds": time.monotonic() - started,
        "seconds of the model": time.monotonic() - ready,
        "stride": stride,
        "groups": artifact.bytes,
        "text": sha256(text).hexdigest(),
        "sources": sources(),
    }
