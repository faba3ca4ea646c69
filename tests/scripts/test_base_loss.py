"""What scripts.base_loss tells of a base model, in process; as a process it is in tests/test_end_to_end.py."""

import json
import re

import pytest
from base_runs import Base

from nanochat import runtime
from nanochat.gpt import GPT
from scripts import base_loss
from scripts.base_loss import Config


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = Base(tmp_path_factory.mktemp("base"))
    base.run("small", "--depth=1", "--eval-every=-1", "--save-every=-1")
    return base


@pytest.fixture
def loss(base, monkeypatch, capsys):
    """The metrics that it leaves, and what it prints."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))

    def run(**options):
        options = {"tag": "small"} | options
        base_loss.main(Config(eval_bytes=3000, dtype="fp32", **options))
        record = json.loads((base.folder / f"base_loss/{options['tag']}/outcome.json").read_text(encoding="utf-8"))
        return record["metrics"], capsys.readouterr().out

    return run


def test_with_a_stride_there_are_figures_of_overlapping_rows_too(loss):
    plain, _ = loss()
    both, said = loss(stride=8)
    for split in ("train", "val"):
        assert both[f"{split} bpb"] == plain[f"{split} bpb"]
        assert both[f"{split} bpb (stride 8)"]["value"] != both[f"{split} bpb"]["value"]
        assert re.search(rf"^base_loss: {split} bpb \(stride 8\) \d\.\d{{4}} ± ", said, re.MULTILINE)
    assert not any("stride" in name for name in plain)


def test_much_text_is_worth_compiling(loss, monkeypatch):
    compiled = []
    monkeypatch.setattr(GPT, "compile_parts", lambda self: compiled.append(self))
    loss()
    assert not compiled
    monkeypatch.setattr(runtime, "COMPILING_PAYS", 0)
    loss()
    assert len(compiled) == 1


def test_a_recursive_model_has_a_table_of_its_exits(base, loss, capsys):
    base.run("exits", "--depth=1", "--recursion=aggressive", "--supervision=2", "--num-iterations=4", "--save-every=-1")
    metrics, said = loss(tag="exits")
    record = json.loads((base.folder / "base_loss/exits/outcome.json").read_text(encoding="utf-8"))
    table = record["tables"][0]
    assert [row[:2] for row in table["rows"]] == [[0, "yes"], [1, "yes"], [2, "no"], [3, "no"]]
    assert table["rows"][1][2] == pytest.approx(metrics["val bpb"]["value"], rel=1e-6)
    assert said.count("base_loss: val bpb at exit ") == 4
