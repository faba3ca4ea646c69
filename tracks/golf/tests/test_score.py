"""The scoring process: equal to base_loss's path, alone in the sandbox, and strict about bytes."""

import json
import math
import subprocess
import sys
from dataclasses import asdict

import pyarrow as pa
import pytest
import torch
from conftest import ROOT
from contain import NEEDS_SANDBOX
from models import lively

from nanochat import quant
from nanochat.evals import sandbox
from nanochat.evals.bpb import read_text, text_bpb
from nanochat.models import config_with
from nanochat.runtime import setup
from nanochat.tokenizer import Tokenizer
from tracks.golf import score as golf
from tracks.golf.artifact import read_artifact, write_artifact
from tracks.golf.model import GolfConfig
from tracks.golf.pack import vocabulary_of, without_defaults
from tracks.golf.tests.golf_models import CONFIGS

TEXTS = [f"Letter {number}: the quick brown fox — 빠른 갈색 여우 — {number**3}\n" * 3 for number in range(12)]
CONTEXT = 32


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, 300)


@pytest.fixture(scope="module")
def packed(tokenizer):
    """A model with quantized weights, and the file with them."""
    fields = {**CONFIGS["golf"], "vocab_size": tokenizer.vocab_size, "max_seq_len": CONTEXT, "bos_id": tokenizer.bos}
    model = lively(fields).requires_grad_(False).eval()
    recipes = quant.assign("int6-row+clip-8", quant.matrices(model))
    stored = quant.quantize_weights(model.state_dict(), recipes, {})
    data = write_artifact(without_defaults(model.config), stored, vocabulary_of(tokenizer), recipes)
    model.load_state_dict(read_artifact(data).weights)
    return model, data


@pytest.mark.parametrize("fields", [{"max_seq_len": 2048}, {"heads": 12, "kv_heads": 6, "width": 96}, {}])
def test_a_config_comes_back_without_its_defaults(fields) -> None:
    for name in CONFIGS:
        config = config_with({**CONFIGS[name], **fields})
        assert asdict(GolfConfig(**without_defaults(config))) | asdict(config) == asdict(GolfConfig(**asdict(config)))


@pytest.fixture
def files(packed, tmp_path):
    (tmp_path / "artifact").write_bytes(packed[1])
    (tmp_path / "text").write_text(json.dumps(TEXTS), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("stride", "rows"), [(32, 8), (16, 3), (7, 8), (1, 50)])
def test_a_score_is_that_of_base_loss(packed, tokenizer, stride, rows) -> None:
    model, data = packed
    text = read_text([pa.array(TEXTS)], tokenizer, 10**9)
    with setup("cpu", "fp32") as runtime:
        expected = text_bpb(model, text, CONTEXT, rows, runtime, stride).value
    artifact = read_artifact(data)
    ids = golf.encode(TEXTS, tokenizer.core)
    assert torch.equal(ids, text.ids)
    loaded = golf.load(artifact, "cpu")
    with torch.inference_mode():
        nats, size, _ = golf.score(loaded, ids, text.lengths, stride, rows)
    assert size == text.bytes
    assert nats / math.log(2) / size == pytest.approx(expected, rel=1e-6)


def refusal(files, stride=0, seconds=60):
    with pytest.raises((ValueError, OSError, RuntimeError)) as refused:
        golf.score_files(str(files), stride, 8, seconds, "cpu")
    return str(refused.value)


def test_a_fresh_process_scores_the_file_and_lists_its_sources(files, packed) -> None:
    arguments = (str(files), 16, 8, 60, "cpu")
    program = f"import json; from tracks.golf.score import score_files; print(json.dumps(score_files{arguments}))"
    plain = json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT))
    assert plain["bytes"] == sum(len(text.encode()) for text in TEXTS)
    modules = ("__init__", "attention", "cross_entropy", "errors", "gpt", "induction", "quantized")
    trunk = [f"nanochat/{name}.py" for name in (*modules, "evals/__init__", "evals/rows")]
    track = [f"tracks/{name}.py" for name in ("__init__", "golf/__init__", "golf/artifact", "golf/model", "golf/score")]
    assert plain["sources"] == {name: (ROOT / name).stat().st_size for name in trunk + track}
    # A changed bit makes another file, and is refused.
    data = bytearray(packed[1])
    data[-1] ^= 1
    (files / "artifact").write_bytes(data)
    assert refusal(files) == "the artifact is damaged: its content does not have the SHA-256 in its header"


def test_what_cannot_be_scored_is_refused(files, packed) -> None:
    sentence = "--stride=33 would leave out text, use 1 to 32, the context's length"
    assert refusal(files, stride=33).startswith(sentence)
    assert refusal(files, seconds=0).startswith("scoring took longer than")
    artifact = read_artifact(packed[1])
    weights = {name: value for name, value in artifact.weights.items() if name != "smear_lambda"}
    (files / "artifact").write_bytes(write_artifact(artifact.config, weights, artifact.vocabulary, {}))
    assert 'Missing key(s) in state_dict: "smear_lambda"' in refusal(files)
    other = artifact.vocabulary | {"merges": artifact.vocabulary["merges"][:-1]}
    (files / "artifact").write_bytes(write_artifact(artifact.config, artifact.weights, other, {}))
    assert refusal(files) == "the artifact has another tokenizer than its model: pack it again"


@NEEDS_SANDBOX
def test_the_sandbox_shows_what_it_is_given_and_nothing_else(tmp_path) -> None:
    given_folder, other = tmp_path / "given", tmp_path / "other"
    for folder in (given_folder, other):
        folder.mkdir()
        (folder / "file").write_text("plum")
    tmp_path.chmod(0o755)
    program = f"print(open({str(given_folder / 'file')!r}).read())\nopen({str(other / 'file')!r})"
    verdict = sandbox.run_program(program, sandbox.Limits(seconds=20.0), readable=[str(given_folder)])
    assert "plum" in verdict.output
    assert "FileNotFoundError" in verdict.output
    written = sandbox.run_program(
        f"open({str(given_folder / 'file')!r}, 'w')", sandbox.LIMITS, readable=[str(given_folder)]
    )
    assert "Read-only file system" in written.output
