"""The checks of our own scorer: an artifact passes them, and a model that breaks a rule does not."""

import json
import struct
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from base_runs import Base

from nanochat.errors import UserError
from nanochat.gpt import GPT
from tracks.golf import checks
from tracks.golf import pack as golf_pack
from tracks.golf.artifact import COMPRESSORS, MAGIC, Artifact, read_artifact, write_artifact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact and a text, as they are scored."""
    base = Base(tmp_path_factory.mktemp("checks"))
    base.run("entry", "--model=golf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
        golf_pack.main(golf_pack.Config(tag="entry", plan="embed=int8-row,blocks=int8-row", eval_bytes=3000))
    place = base.folder / "scored"
    place.mkdir()
    (base.folder / "golf_pack/entry/artifact.golf").rename(place / "artifact")
    (place / "text").write_text(json.dumps([path.read_text() for path in sorted(base.text.iterdir())][:3]))
    return place


def test_an_artifact_passes(folder: Path) -> None:
    found = checks.check_files(str(folder), 4, "cpu")
    assert found["places"] == found["rows"] * 32 > 100
    assert found["bytes"] == (folder / "artifact").stat().st_size
    assert 0 < found["sum"] < 1e-6
    assert max(found["causal"], found["again"]) < 1e-4


def looking_ahead(model: GPT) -> None:
    """The first layer sees the whole row."""
    block = model.blocks[0]
    plain = block.mlp.forward
    block.mlp.forward = lambda x: plain(x) + x.mean(dim=1, keepdim=True)


def learning(model: GPT) -> None:
    """Each forward pass changes the weights."""

    def learn(*_: object) -> None:
        model.embed.weight[3] += 1

    model.register_forward_hook(learn)


def no_number(model: GPT) -> None:
    model.blocks[0].mlp.down.weight[3] = torch.nan


def shouting(model: GPT) -> None:
    """Losses that are half of what the probabilities say."""
    plain = model.forward

    def forward(inputs: torch.Tensor, *more: torch.Tensor, **options: str) -> torch.Tensor:
        found = plain(inputs, *more, **options)
        return found / 2 if more else found

    model.forward = forward


@pytest.mark.parametrize(
    ("break_rule", "rule"),
    [(looking_ahead, "causal"), (learning, "score first"), (shouting, "normalised"), (no_number, "normalised")],
)
def test_a_broken_rule_is_named(break_rule, rule: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = checks.load

    def load_broken(*given) -> GPT:
        model = load(*given)
        break_rule(model)
        return model

    monkeypatch.setattr(checks, "load", load_broken)
    with pytest.raises(UserError, match=f"^{rule}: "):
        checks.check_files(str(folder), 4, "cpu")


def test_all_of_the_file_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = checks.read_artifact

    def read_less(data: bytes) -> Artifact:
        artifact = read(data)
        artifact.bytes.pop("header")
        return artifact

    monkeypatch.setattr(checks, "read_artifact", read_less)
    with pytest.raises(UserError, match=r"^bytes: "):
        checks.check_files(str(folder), 4, "cpu")


JUNK = b"bytes that hold something else"


def signed(rest: bytes) -> bytes:
    """Return a file that the reader accepts."""
    return MAGIC + sha256(rest).digest() + rest


def appended(data: bytes) -> bytes:
    """Behind the vocabulary, which does not count."""
    return signed(data[len(MAGIC) + 32 :] + JUNK)


def after_the_header(data: bytes) -> bytes:
    rest = data[len(MAGIC) + 32 :]
    size, length = struct.unpack_from("<II", rest)
    return signed(
        struct.pack("<II", size + len(JUNK), length + len(JUNK)) + rest[8 : 8 + length] + JUNK + rest[8 + length :]
    )


def in_a_section(data: bytes) -> bytes:
    """More values than the tensors have."""
    made = read_artifact(data)
    whole = write_artifact(made.config, {**made.stored, "more": torch.ones(7)}, made.vocabulary, made.recipes)
    rest = whole[len(MAGIC) + 32 :]
    size, length = struct.unpack_from("<II", rest)
    shorten, expand = COMPRESSORS["zlib"]
    header = json.loads(expand(rest[8 : 8 + length]))
    header["tensors"].pop()
    head = shorten(json.dumps(header).encode())
    return signed(struct.pack("<II", size + len(head) - length, len(head)) + head + rest[8 + length :])


@pytest.mark.parametrize("fill", [appended, after_the_header, in_a_section])
def test_bytes_that_the_model_does_not_come_from_are_found(fill, folder: Path, tmp_path: Path) -> None:
    data = (folder / "artifact").read_bytes()
    checks.require_whole(data)
    filled = fill(data)
    assert read_artifact(filled).stored.keys() == read_artifact(data).stored.keys()  # it can be scored
    (tmp_path / "artifact").write_bytes(filled)
    with pytest.raises(UserError, match=r"^bytes: "):
        checks.check_files(str(tmp_path), 4, "cpu")
