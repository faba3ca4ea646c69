"""Checkpoints of the public nanochat: October's model computes what `transformers` does; other layouts are refused."""

import zipfile
from copy import copy

import pytest
import torch
from old_models import SHAPE, forward_of_october, leave, october, since_march

from nanochat.gpt import GPT
from tracks.export.from_nanochat import read_checkpoint


def model_of(path) -> GPT:
    config, weights, _ = read_checkpoint(path)
    model = GPT(config)
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)


def test_october_computes_the_same(tmp_path) -> None:
    """With a padded vocabulary; tracks/export/tests/test_import_nanochat.py has one without."""
    weights = october(padded=704)
    path = leave(tmp_path, weights)
    ids = torch.randint(701, (2, 192), generator=torch.Generator().manual_seed(2))
    model, expected = model_of(path), forward_of_october(weights, ids)
    assert expected.std() > 1
    torch.testing.assert_close(model(ids), expected, atol=1e-5, rtol=0)
    assert model.config.padded_vocab == 704


def test_all_weights_since_march_are_imported(tmp_path) -> None:
    """Every weight finds its place; the public forward is not a part of this repository."""
    shape = SHAPE | {"window_pattern": "SL"}
    weights = since_march(shape)
    path = leave(tmp_path, weights, shape)
    config, found, _ = read_checkpoint(path)
    assert (config.window_pattern, config.windows, config.bos_id) == ("SL", [129, 0, 0], -1)
    assert config.value_layers == [0, 2]
    for ours, theirs in {
        "residual_lambdas": "resid_lambdas",
        "x0_lambdas": "x0_lambdas",
        "smear_gate.weight": "smear_gate.weight",
        "backout_lambda": "backout_lambda",
        "value_embeds.2.weight": "value_embeds.2.weight",
        "blocks.0.attn.ve_gate.weight": "transformer.h.0.attn.ve_gate.weight",
        "blocks.1.attn.v.weight": "transformer.h.1.attn.c_v.weight",
        "blocks.1.mlp.down.weight": "transformer.h.1.mlp.c_proj.weight",
        "head.weight": "lm_head.weight",
    }.items():
        assert torch.equal(found[ours], weights[theirs]), ours
    assert len(found) == len(weights)
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    assert model_of(path)(torch.arange(150)[None]).isfinite().all()


def test_settings_for_fine_tuning(tmp_path) -> None:
    settings = read_checkpoint(leave(tmp_path, october()))[2]
    assert (settings["matrix_lr"], settings["max_seq_len"]) == (0.02, 192)


OTHER_LAYOUTS = """
since_march() | {"ema": torch.zeros(3)}
{name: weight for name, weight in since_march().items() if "smear" not in name}
october() | {"lm_head.weight": torch.zeros(700, 64)}
october(SHAPE | {"n_kv_head": 4})
"""


@pytest.mark.parametrize("weights", OTHER_LAYOUTS.strip().splitlines())
def test_another_layout_is_refused(weights, tmp_path) -> None:
    path = leave(tmp_path, eval(weights))
    with pytest.raises(ValueError, match="has neither known layout"):
        read_checkpoint(path)


def test_another_setting_is_refused(tmp_path) -> None:
    path = leave(tmp_path, october(), SHAPE | {"n_loop": 2})
    with pytest.raises(ValueError, match="has neither known layout"):
        read_checkpoint(path)


@pytest.mark.parametrize("size", [10**9, 10**30, -1, 2.5, None, True, [3]])
@pytest.mark.parametrize("name", ["n_layer", "sequence_len", "n_embd", "n_head", "vocab_size"])
def test_sizes_that_the_file_does_not_have(name, size, tmp_path) -> None:
    path = leave(tmp_path, october(), SHAPE | {name: size})
    with pytest.raises(ValueError, match=r"has other sizes than its meta file says|has neither known layout"):
        read_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("names", [1, 100])
def test_tensors_that_name_one_number_often_are_refused(names, dtype, tmp_path) -> None:
    """A file of kilobytes would become weights of terabytes."""
    path = leave(tmp_path, october())
    weights = torch.load(path)
    name = next(name for name in weights if name.endswith("lm_head.weight"))
    if names == 1:
        weights[name] = torch.ones(1, dtype=dtype).expand(weights[name].shape)
    else:
        whole = torch.ones(weights[name].shape, dtype=dtype)
        weights |= {f"{name}{number}": whole for number in range(names)}
    torch.save(weights, path)
    with pytest.raises(ValueError, match="holds no weights that can be read: its tensors name the same numbers again"):
        read_checkpoint(path)


def test_a_compressed_file_is_refused(tmp_path) -> None:
    """A thousand times its size would be read before anything is compared."""
    path = leave(tmp_path, october())
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    with pytest.raises(ValueError, match="its parts are compressed"):
        read_checkpoint(path)


def test_parts_over_each_other_are_refused(tmp_path) -> None:
    """One part under a thousand names would become a thousand storages."""
    path = leave(tmp_path, october())
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in parts.items():
            new.writestr(name, content)
        largest = max(new.infolist(), key=lambda entry: entry.file_size)
        for number in range(100):
            again = copy(largest)
            again.filename = f"archive/data/again{number}"
            new.filelist.append(again)
    with pytest.raises(ValueError, match="its parts lie over each other"):
        read_checkpoint(path)


@pytest.mark.parametrize("meta", ['{"model_config": null}', "{}", "[]"])
def test_a_meta_file_without_sizes(meta, tmp_path) -> None:
    path = leave(tmp_path, october())
    [file] = tmp_path.glob("meta_*.json")
    file.write_text(meta)
    with pytest.raises(ValueError, match="its meta file has no model_config"):
        read_checkpoint(path)


class Harmful:
    """A pickle that runs a program when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit('a program has run')",)


@pytest.mark.parametrize("stored", [{"a": Harmful()}, {1: torch.zeros(3)}, {"a": 1}])
def test_no_program_runs_and_other_values_are_refused(stored, tmp_path) -> None:
    path = leave(tmp_path, october())
    torch.save(stored, path)
    with pytest.raises(ValueError, match="holds no weights"):
        read_checkpoint(path)


def test_an_error_without_a_message_is_named(tmp_path, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EOFError

    path = leave(tmp_path, october())
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(ValueError, match=r"holds no weights that can be read: EOFError$"):
        read_checkpoint(path)
