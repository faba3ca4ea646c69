"""The command that judges an entry from elsewhere: its record, a ledger that keeps each refusal, and the budget."""

import json
import re
from pathlib import Path

import pytest
from base_runs import Base
from contain import NEEDS_SANDBOX
from foreign_entries import CHEATS, HONEST, place, written

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_json, text_sha256
from nanochat.trial.ledger import Ledger, read, verify
from nanochat.trial.scorer import Refused
from nanochat.world.writer import write_world
from tracks.golf.judge import Config, main

pytestmark = NEEDS_SANDBOX
__all__ = ["place"]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    base = Base(tmp_path / "base")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    return base


def refused(base: Base, place: Path, tag: str = "entry") -> Record:
    """The record of a judgement that ends with a refusal."""
    with pytest.raises(Refused) as caught:
        main(Config(folder=str(place), data=str(base.text), eval_bytes=1500, tag=tag))
    outcome = read_json(base.folder / f"golf_judge/{tag}/outcome.json")
    assert outcome["metrics"]["Refused"] == str(caught.value)
    assert "bpb" not in outcome["metrics"]
    return outcome


def tries(outcome: Record) -> list[tuple[str, str, str]]:
    """Tag, hash and verdict of each try on a record."""
    table = outcome["tables"][-1]
    assert table["title"] == "Tries"
    assert outcome["metrics"]["Tries"] == len(table["rows"])
    return [tuple(row[1:]) for row in table["rows"]]


def test_the_command(base: Base, place: Path) -> None:
    main(Config(folder=str(written(place, HONEST)), data=str(base.text), eval_bytes=1500))
    outcome = read_json(base.folder / "golf_judge/entry/outcome.json")
    assert outcome["metrics"]["Bytes"] == len(HONEST) + len("scorer.py")
    assert [row[0] for row in outcome["tables"][1]["rows"]] == ["normalised", "causal", "score first", "bytes", "time"]
    assert "note" not in outcome["tables"][1]
    content = text_sha256(json.dumps({"scorer.py": text_sha256(HONEST)}))
    first = ("entry", content[:12], f"{outcome['metrics']['bpb']['value']:.4f} bits per byte")
    assert tries(outcome) == [first]
    written(place, HONEST.replace(*CHEATS["no number"][:2]))
    after = refused(base, place)
    assert after["metrics"]["Refused"].startswith("refused, normalised: ")
    assert [first[2], after["metrics"]["Refused"]] == [verdict for _, _, verdict in tries(after)]
    with pytest.raises(UserError, match="name the entry's folder"):
        Config()
    with pytest.raises(UserError, match="--scale=1gpu scores on a GPU, which the sandbox has not"):
        main(Config(folder=str(place), scale="1gpu"))


def test_each_fault_of_an_entry_stays_on_record(base: Base, place: Path) -> None:
    """Also one that is no cheat: another try can be luckier. A new name does not hide that the files were tried."""
    ledger = base.folder / "golf_judge/entry/tries.jsonl"
    refused(base, written(place, HONEST.replace("return Entry()", "raise ValueError('no weights')")))
    refused(base, written(place, HONEST.replace("return np.log(np.array(rows))", "return np.zeros((1, 2))")))
    (written(place, HONEST) / "weights").write_bytes(bytes(199_993))
    whole = refused(base, place)
    sentences = [
        "refused, interface: scorer.py: ValueError: no weights",
        "refused, interface: scorer.py: log_probs gave 2 numbers, not 4 x 257",
        rf"refused, bytes: .* over the budget of 200,000; the largest: weights 200,000, scorer.py {len(HONEST) + 9}",
    ]
    for (_, _, verdict), sentence in zip(tries(whole), sentences, strict=True):
        assert re.fullmatch(sentence, verdict)
    assert verify(ledger, re.findall(r"\w{64}", whole["tables"][-1]["note"])[0]) == 6
    assert [record["rule"] for record in read(ledger) if record["kind"] == "verdict"] == [
        "interface",
        "interface",
        "bytes",
    ]
    Ledger(ledger).add("try", at="2026", tag="entry", entry="0" * 64)  # as if it had been stopped
    other = refused(base, place, "other")
    assert [tag for tag, _, _ in tries(other)] == ["entry", "other"]  # of the same files
    assert tries(refused(base, place))[0] == ("entry", "0" * 12, "no verdict: it was stopped")
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([*lines[:2], *lines[4:], ""]))
    with pytest.raises(UserError, match=r"tries.jsonl: line 3 was changed"):
        main(Config(folder=str(place), data=str(base.text), eval_bytes=1500))


def test_a_world_ranks_nothing(base: Base, place: Path) -> None:
    write_world(base.folder / "world-2", 2, "tiny")
    main(Config(folder=str(written(place, HONEST)), data="world-2", eval_bytes=300))
    [checks] = [
        table
        for table in read_json(base.folder / "golf_judge/entry/outcome.json")["tables"]
        if table["title"] == "Checks"
    ]
    assert checks["note"].startswith("This score ranks nothing: ")
