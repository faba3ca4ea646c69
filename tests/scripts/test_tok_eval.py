"""Tokenizer training and evaluation: artifacts, records, figures, mistakes."""

import re
import threading

import pytest
import tiktoken
from conftest import ROOT
from outcomes import sections

from nanochat.paths import read_json
from nanochat.stages import STAGES
from nanochat.tokenizer import Tokenizer
from scripts import tok_eval

CACHE = ROOT.parent / "shared/tiktoken_cache"
UNREACHABLE = "http://127.0.0.1:9"  # nothing listens on this port


@pytest.fixture
def trained(here, text_folder):
    return here("scripts.tok_train", "--vocab-size=320", f"--data={text_folder}", "--threads=1")


def test_tokenizer_training(trained, base, text_folder, here) -> None:
    assert sorted(path.name for path in (base / "tok_train/default").iterdir()) == ["outcome.json", "tokenizer.json"]
    record = read_json(base / "tok_train/default/outcome.json")
    sizes = [f"token_bytes_{figure}" for figure in ("min", "max", "mean", "std")]
    assert list(record["metrics"])[:6] == ["train_time", "num_special_tokens", *sizes]
    assert record["card"] == ["max_chars", "doc_cap", "vocab_size"]  # then the metrics: fields of the reference
    assert record["metrics"]["vocab_size_reached"] == 320
    assert "tokenizer.json" in record["artifacts"]
    assert str(text_folder.parent) not in str(record["metrics"])
    assert "vocab_size_reached: 320" in trained.stdout

    tokenizer = Tokenizer.load(base / "tok_train/default/tokenizer.json")
    assert tokenizer.vocab_size == 320
    assert tokenizer.content_hash == record["metrics"]["tokenizer_hash"]
    here("scripts.tok_train", "--vocab_size", "320", f"--data={text_folder}", "--tag=again", "--threads=2")
    artifacts = [(base / "tok_train" / tag / "tokenizer.json").read_bytes() for tag in ("default", "again")]
    assert artifacts[0] == artifacts[1]  # the same text and settings, whatever the threads and the folder


def test_the_card_has_the_fields_of_the_reference(trained, base, here, tmp_path) -> None:
    # No vocabulary in the cache, and no network to fetch one.
    offline = {"TIKTOKEN_CACHE_DIR": str(tmp_path / "no"), "https_proxy": UNREACHABLE, "HTTPS_PROXY": UNREACHABLE}
    done = here("scripts.tok_eval", f"--data={tmp_path / 'letters'}", **offline)
    card_path = tmp_path / "report.md"
    here("nanochat.report", f"--out={card_path}")
    card = card_path.read_text(encoding="utf-8")
    assert str(tmp_path) not in card
    assert list(sections(card)) == ["Environment", *[stage.section for stage in STAGES[:2]], "Summary"]

    evaluation = re.sub(" +", " ", sections(card)["Tokenizer evaluation"])
    tables = re.findall("### Comparison with (.*)\n\n(.*)\n.*\n((?:[|].*\n)+)\n(.*)", evaluation)
    assert [label for label, *_ in tables] == ["GPT-2", "GPT-4"]
    for label, columns, rows, reason in tables:
        ratios = f"Text Type | Bytes | {label} Tokens | {label} Ratio | Ours Tokens | Ours Ratio | Relative Diff %"
        assert columns == f"| {ratios} |"
        named = re.findall(r"^\| ([\w-]+) \| \d+ \| - \| - \| \d+ \| \d+\.\d\d \| - \|$", rows, re.MULTILINE)
        assert named == ["news", "korean", "code", "math", "science", "letters-train", "letters-val"]
        name = tok_eval.REFERENCES[label]
        assert re.fullmatch(rf"{name} was not downloaded \(\w+Error\): connect to the network, or set TIK.*", reason)
        assert reason in done.stdout


def test_a_network_that_never_answers_does_not_hold_up_the_stage(monkeypatch) -> None:
    monkeypatch.setattr(tok_eval, "PATIENCE", 0.1)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: threading.Event().wait(60))
    assert str(tok_eval.load_reference("gpt2")).startswith("gpt2 was not downloaded (no answer within 0.1 s): connect ")


@pytest.mark.skipif(not CACHE.is_dir(), reason="no vocabulary of GPT-4 on this machine")
def test_known_vocabularies_are_found(monkeypatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(CACHE))
    assert [tok_eval.load_reference(name).n_vocab for name in tok_eval.REFERENCES.values()] == [50_257, 100_277]


def test_the_arithmetic_of_a_comparison() -> None:
    """With a vocabulary of nothing but bytes, whose tokens are counted by hand, and with a missing one."""
    single_bytes = {bytes([value]): value for value in range(256)}
    reference = tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=single_bytes, special_tokens={})
    texts = {"two": ["abcd", "여우"], "one": ["abab"]}
    table = tok_eval.comparison("bytes", reference, texts, {"two": 9, "one": 2})
    assert table["rows"] == [["two", 10, 10, 1.0, 9, 10 / 9, 0.1], ["one", 4, 4, 1.0, 2, 2.0, 0.5]]
    assert "note" not in table
    table = tok_eval.comparison("GPT-2", "the reason", texts, {"two": 20, "one": 4})
    assert table["rows"] == [["two", 10, None, None, 20, 0.5, None], ["one", 4, None, None, 4, 1.0, None]]
    assert table["note"] == "the reason"
