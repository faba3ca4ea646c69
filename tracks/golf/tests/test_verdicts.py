"""The table of the claims, from scores with known differences."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from outcomes import ENVIRONMENT, RECORD

from nanochat.jobs.scales import flag_words
from nanochat.outcome import Outcome
from nanochat.paths import read_json, write_json
from tracks.golf import verdicts
from tracks.golf.arms import arm_flags
from tracks.golf.documents import FILE
from tracks.golf.entries import SCALES

SIZES = [100, 200, 300]  # bytes of the documents
ARMS = "rope-all,layers-9,no-overlap"


def leave_scores(
    name: str,
    seed: int,
    bpb: float,
    text: str,
    size: int = 900_000,
    overlap: float = 0.0,
    steps: int = 1000,
    seconds: float = 11.0,
) -> None:
    """Write the scores of a run, as tracks.golf.documents does; rows that do not overlap are worse by `overlap`."""
    one = {
        "Scale": "cpu",
        "Text": text,
        "Documents": 3,
        "Bytes of text": 600,
        "Bytes": size,
        "Steps": steps,
        "Training seconds": 560.0,
        "Packing seconds": 10.0,
        "Scoring seconds, stride 128": 20.0 * 600 / SCALES["cpu"].eval_bytes,
        "Scoring seconds, stride 0": seconds * 600 / SCALES["cpu"].eval_bytes,
    }
    outcome = Outcome(
        **RECORD
        | {"stage": "golf_documents", "tag": f"made-{name}-{seed}-{text}", "environment": ENVIRONMENT, "metrics": one}
    )
    outcome.folder.mkdir(parents=True)
    write_json(outcome.folder / "outcome.json", asdict(outcome))
    nats = {
        stride: [(bpb + worse) * np.log(2) * size for size in SIZES] for stride, worse in ((128, 0.0), (0, overlap))
    }
    checked = {"places": 10_000 + seed, "sum": 1e-7 * seed, "causal": 0.0, "again": 0.0, "bytes": size - 90_000}
    write_json(outcome.folder / FILE, {"bytes": SIZES, "nats": nats, "checked": checked})


def test_gains_losses_and_what_cannot_be_told_are_in_the_table(base: Path) -> None:
    for text, better in (("choose", 0.0), ("report", 0.3)):
        for seed, noise in ((1, 0.001), (2, -0.001), (3, 0.0)):
            leave_scores("seed", seed, 2.0 - better + noise, text, overlap=0.05 + noise)
            leave_scores("rope-all", seed, 2.15 - better - noise / 2, text)
        leave_scores("layers-9", 1, 1.8 - better, text, size=1_000_007)
    counts = verdicts.seed_counts("made", verdicts.arms_of(ARMS), 3)
    assert counts == {"seed": 3, "rope-all": 3, "layers-9": 1}  # one seed has rejected the claim on 8 layers
    verdicts.main(verdicts.Config(tag="made", arms=ARMS))
    record = read_json(base / "golf_claims/made/outcome.json")
    rope, layers, overlap = record["tables"][0]["rows"]
    assert rope[:3] == ["RoPE on half of the channels", "0.15 bpb", "all channels"]
    assert rope[3] == pytest.approx(0.15)
    assert rope[6] == pytest.approx(0.15)
    assert rope[8:] == [3, 1000, 0.56, 570, 900_000, "gains"]
    assert layers[3] == pytest.approx(-0.201)  # beside the row's first seed
    assert layers[8:] == [1, 1000, 0.56, 570, 1_000_007, "loses; 7 bytes over the budget"]
    assert overlap[3] == pytest.approx(0.05)
    assert overlap[9:12] == [1000, 0.56, pytest.approx(11 * 600 / 1e6)]
    assert overlap[13] == "gains"
    assert record["tables"][1]["rows"] == [
        ["seed", 6, 10_001, pytest.approx(3e-7), 0.0, 0.0, 810_000],
        ["rope-all", 6, 10_001, pytest.approx(3e-7), 0.0, 0.0, 810_000],
        ["layers-9", 2, 10_001, pytest.approx(1e-7), 0.0, 0.0, 910_007],
    ]
    assert record["tables"][2]["rows"] == [
        ["RoPE on half of the channels", "the claim", "it gains"],
        ["8 layers", "the claim", "it loses, but what beats it is over the budget of bytes or scoring time"],
        ["score with stride 128", "the claim", "it gains"],
    ]
    figures = record["metrics"]
    assert figures["bpb of the baseline, text for selection"]["value"] == pytest.approx(2.0)
    assert figures["bpb of the baseline, text for reporting"]["value"] == pytest.approx(1.7)
    assert figures["Text for reporting"] == "report, 3 documents, 600 bytes"
    assert figures["Runs"] == 7
    assert (figures["Steps"], figures["Seconds per step"]["value"]) == (1000, pytest.approx(0.56))
    assert figures["Hours of training and packing"]["value"] == pytest.approx(7 * 570 / 3600)


@pytest.mark.parametrize("seconds", [149.0, 151.0])
def test_the_entry_follows_from_the_table(seconds: float, base: Path) -> None:
    """What loses is replaced, by the better one of two arms that beat it; what is open stays as in the row.

    seconds: of scoring with the stride that beats the claim, of which half of the limit is allowed.
    """
    arms = "xsa-4,no-xsa,gain-before,layers-9,no-qat,no-overlap"
    for text in ("choose", "report"):
        for seed, noise in ((1, 0.001), (2, -0.001), (3, 0.0)):
            leave_scores("seed", seed, 2.0 + noise, text, overlap=-0.05 + noise, seconds=seconds)
            leave_scores("gain-before", seed, 2.0 - noise, text)
        for name, bpb in (("xsa-4", 1.8), ("no-xsa", 1.7), ("layers-9", 1.6), ("no-qat", 1.5)):
            leave_scores(name, 1, bpb, text)
    verdicts.main(verdicts.Config(tag="made", arms=arms))
    table = read_json(base / "golf_claims/made/outcome.json")["tables"][2]
    taken = [row[1] for row in table["rows"]]
    is_slow = seconds > 150
    assert taken[:-1] == ["no XSA", "the claim", "9 layers", "no QAT"]
    _, stride, why = table["rows"][-1]
    assert stride == ("the claim" if is_slow else "rows that do not overlap")
    assert ("but what beats it is over the budget of bytes or scoring time" in why) == is_slow
    assert table["rows"][1][2].startswith("as in the row")
    words = table["note"].split("`")[1].split()
    row = [word for word in flag_words(arm_flags("cpu", None, {})) if "--qat" not in word]
    model = next(word for word in row if word.startswith("--model="))
    changed = {model: f"{model},exclusive_last=0", "--depth=8": "--depth=9"}
    assert words == [changed.get(word, word) for word in row]
    assert f"stride {128 if is_slow else 0}:" in table["note"]  # which is not slow


def test_an_arm_whose_steps_took_another_time_than_those_of_the_same_seeds_is_named(base: Path) -> None:
    for text in ("choose", "report"):
        # The machine was slower for all later seeds: what both have is not named, nor another shape.
        for seed, steps in ((1, 1000), (2, 800), (3, 800)):
            leave_scores("seed", seed, 2.0, text, steps=steps)
            leave_scores("rope-all", seed, 2.0, text, steps=steps - 40)
            leave_scores("no-gain", seed, 2.0, text, steps=steps - 70)
            leave_scores("uniform", seed, 2.0, text, steps=steps + 70)
            leave_scores("layers-9", seed, 2.0, text, steps=steps - 100)
    names = "rope-all,no-gain,uniform,layers-9,no-overlap"
    verdicts.main(verdicts.Config(tag="made", arms=names))
    table, *_ = read_json(base / "golf_claims/made/outcome.json")["tables"]
    said = [row[-1].rpartition("; ")[2] for row in table["rows"] if "per step" in row[-1]]
    assert said == [
        "8.8 % more seconds per step than the baseline",  # 2600 / 2390
        "7.5 % fewer seconds per step than the baseline",  # 2600 / 2810
    ]
    assert [row[0] for row in table["rows"] if "per step" in row[-1]] == ["QK gain from 1.75", "orthogonal init"]


def test_scores_without_a_stride_are_refused(base: Path) -> None:
    leave_scores("seed", 1, 2.0, "choose")
    with pytest.raises(ValueError, match="made-seed-1 was not scored with stride 96: run tracks"):
        verdicts.read_study("made", verdicts.arms_of("stride-96"), {"seed": 1}, "choose")


def test_scores_of_artifacts_that_were_not_checked_do_not_count(base: Path) -> None:
    leave_scores("seed", 1, 2.0, "choose")
    path = base / "golf_documents/made-seed-1-choose" / FILE
    scores = read_json(path)
    del scores["checked"]
    write_json(path, scores)
    with pytest.raises(
        ValueError, match=r"made before artifacts were checked, .* remove golf_documents/made-seed-1-choose"
    ):
        verdicts.read_study("made", verdicts.arms_of("no-overlap"), {"seed": 1}, "choose")
