"""Golf scoring: a process of its own reads an artifact and a text, nothing else, and prints the bits per byte.

python -m nanochat.golf ARTIFACT TEXT --stride=64

TEXT is a JSON list of documents. Every byte is scored once. The last line of the output is a JSON object with the score
and the source files of this repository that the process has imported, because their bytes count. scripts.golf_eval runs
this file in the sandbox.
"""

import json
import math
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

import rustbpe
from nanochat.artifact import Artifact, read_artifact
from nanochat.cross_entropy import overlapping_rows
from nanochat.gpt import GPT, GPTConfig

ROOT = Path(__file__).parent.parent


def load(artifact: Artifact, device: str):
    """Return the artifact's model."""
    with torch.device("meta"):
        model = GPT(GPTConfig(**artifact.config))
    model.to_empty(device=device)
    model.load_state_dict(artifact.weights)
    model.attention = "chunks"  # on a GPU too, where fused kernels want half precision
    return model.eval().requires_grad_(False)


def encode(documents: Sequence[str], tokenizer: rustbpe.Tokenizer):
    """Return the tokens of all documents, each after <|bos|>."""
    bos = tokenizer.special_tokens["<|bos|>"]
    return torch.tensor([token for text in documents for token in (bos, *tokenizer.encode(text).tolist())])


def score(model: GPT, ids: Tensor, lengths: Tensor, stride: int, rows: int, deadline: float = math.inf):
    """Return the summed loss in nats of tokens that stand for bytes, their bytes, and their number.

    The first row that has a token as target gives it the longest context. rows: at once. TimeoutError after the
    deadline, by the monotonic clock.
    """
    length = model.config.max_seq_len
    inputs, targets = overlapping_rows(ids, length, stride)
    nats, size, scored = 0.0, 0, 0
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
            done = f"{numbers[-1] + 1:,} of {len(inputs):,} rows"
            raise TimeoutError(f"scoring took longer than allowed, after {done}: take a longer --stride")
    return nats, size, scored


def sources():
    """Return the files of this repository that this process has imported, with their bytes."""
    files = {Path(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    own = [file for file in sorted(files) if file.is_relative_to(ROOT) and "site-packages" not in file.parts]
    return {str(file.relative_to(ROOT)): file.stat().st_size for file in own}


def main(words: Sequence[str]):
    """Score an artifact, and print the score with its facts as JSON."""
    started = time.monotonic()
    parser = ArgumentParser()
    parser.add_argument("artifact", type=Path)
    parser.add_argument("text", type=Path)
    defaults = {"stride": 0, "rows": 8, "seconds": math.inf, "device": "cpu"}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args(words)

    artifact, text = read_artifact(options.artifact.read_bytes()), options.text.read_bytes()
    tokenizer = rustbpe.Tokenizer(**artifact.vocabulary)
    model = load(artifact, options.device)
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError("the artifact has another tokenizer than its model: pack it again")
    documents = json.loads(text)
    ids = encode(documents, tokenizer)
    lengths = torch.from_numpy(tokenizer.token_lengths()).long()
    stride = options.stride or model.config.max_seq_len
    ready = time.monotonic()
    with torch.inference_mode():
        nats, size, scored = score(model, ids, lengths, stride, options.rows, started + options.seconds)
    assert size == sum(len(document.encode()) for document in documents)
    result = {
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
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
