"""The study of the seed's claims: a real run at a tiny size, stopped and resumed; its plan; mistakes."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import plant_world

from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.paths import hold_folder, read_json, read_sha256, write_json
from tracks.golf import checks as checks_of_golf
from tracks.golf import claims, documents, verdicts
from tracks.golf.artifact import Artifact

STUDY = ["--scale=embedded", "--tag=tiny", "--out=tiny.md", "--vocab-size=300", "--arms=no-qat,no-overlap"]
FLAGS = "--num-iterations=3 --depth=1 --width=32 --head-dim=16 --max-seq-len=128 --total-batch-size=256 --no-compile"
FLAGS = [*FLAGS.split(), "--dtype=fp32", "--eval-every=0", "--eval-bytes=3000", "--seeds=2"]
RUNS = ["seed-1", "seed-2", "no-qat-1", "no-qat-2"]  # in the order of the scores to report


def wait_for_lock(folder: Path) -> None:
    """Wait until the step of a process that was killed has ended too."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(UserError), hold_folder(folder):
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} is still held")


def began(output: str) -> list[str]:
    return re.findall(r"^== (\S+): python ", output, re.MULTILINE)


def test_a_study_is_stopped_resumed_and_written_once(
    series, base, tmp_path, tiny_world, quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_world(base, tiny_world)
    # Killed in the middle: the process, and with it the step.
    words = [quick, "-m", "tracks.golf.claims", *STUDY, *FLAGS]
    environment = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("== seed-2-pack: python "):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    wait_for_lock(base / "claims/tiny")
    ended = series("tracks.golf.claims", *STUDY, *FLAGS)
    done = re.findall(r"^== (.*): already finished$", ended.stdout, re.MULTILINE)
    assert done[:4] == ["tok_train", "seed-1-train", "seed-1-pack", "seed-1-choose"]
    ran = [step for step in [*done, *began(ended.stdout)] if step.endswith("-train")]
    assert ran == [f"{run}-train" for run in ("seed-1", "no-qat-1", "seed-2", "no-qat-2")]
    # Verdicts are written down before the text to report is opened.
    steps = began(ended.stdout)
    assert steps[-6:] == [*(f"{run}-report" for run in RUNS), "verdicts", "report"]
    text = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "## Golf, the claims of its seed" in text
    table = [line.split(" | ") for line in text.splitlines() if "not distinguishable" in line or "| gains" in line]
    before, entry = text.split("### The entry by these verdicts")
    for part in (before, entry):
        assert len([line for line in part.splitlines() if line.startswith(("| QAT in", "| score with"))]) == 2
    assert len(table) == 2
    assert all(len(cells) == 14 for cells in table)
    record = read_json(base / "golf_claims/tiny/outcome.json")
    assert record["metrics"]["Runs"] == 4
    assert record["metrics"]["Seeds of the baseline"] == 2
    # Each score was checked before, on its text, and the card says so for each arm.
    assert "### Checks before the scores" in text
    assert [row[:2] for row in record["tables"][1]["rows"]] == [["seed", 4], ["no-qat", 4]]
    [checks] = read_json(base / "golf_documents/tiny-no-qat-1-report/outcome.json")["tables"]
    assert [name for name, _ in checks["columns"]] == ["Places", "Normalised", "Causal", "Score first", "Bytes"]
    [[places, *differences, size]] = checks["rows"]
    assert places >= 1000
    assert max(differences) < 1e-3
    assert size == (base / "golf_pack/tiny-no-qat-1/artifact.golf").stat().st_size
    texts = {record["metrics"][f"Text for {name}"].split(",")[0] for name in ("selection", "reporting")}
    assert len(texts) == 2

    # Again: nothing is trained or counted twice, and the table is the same.
    again = series("tracks.golf.claims", *STUDY, *FLAGS)
    assert began(again.stdout) == ["verdicts", "report"]
    assert "0 to 0 runs are left" in again.stdout
    assert read_json(base / "golf_claims/tiny/outcome.json")["tables"] == record["tables"]
    # Scores that are gone are made again, from the same artifact.
    shutil.rmtree(base / "golf_documents/tiny-no-qat-2-choose")
    assert began(series("tracks.golf.claims", *STUDY, *FLAGS).stdout) == ["no-qat-2-choose", "verdicts", "report"]
    # The reporting text is opened once: other runs, or runs by another text, need another tag.
    opened = "the reporting text was opened when --tag=tiny had other runs or another selection text, whose SHA-256"
    for other in (["--seeds=1"], ["--seeds=2", "--num-iterations=4"], ["--seeds=2", "--num-iterations=4", "--plan"]):
        refused = series("tracks.golf.claims", *STUDY, *FLAGS[:-1], *other, code=2)
        assert opened in refused.stderr
        assert not began(refused.stdout)  # before hours of training
    assert "0 to 0 runs are left" in series("tracks.golf.claims", *STUDY, *FLAGS, "--plan").stdout
    chosen = read_json(base / "claims/tiny/chosen.json")
    artifacts = {run: read_sha256(base / f"golf_pack/tiny-{run}/artifact.golf") for run in RUNS}
    assert chosen["artifacts"] == {
        "seed": [artifacts["seed-1"], artifacts["seed-2"]],
        "no-qat": [artifacts["no-qat-1"], artifacts["no-qat-2"]],
    }
    config = claims.settle(claims.Config(scale="embedded", tag="tiny", arms="no-qat,no-overlap", eval_bytes=3000))
    counts = {"seed": 2, "no-qat": 2}
    claims.open_report(config, counts)
    for metric in ("SHA-256 of the artifact", "SHA-256 of the text"):
        path = base / "golf_documents/tiny-seed-1-choose/outcome.json"
        scored = read_json(path)
        write_json(path, scored | {"metrics": scored["metrics"] | {metric: "0" * 64}})
        with pytest.raises(UserError, match=opened):
            claims.open_report(config, counts)
        write_json(path, scored)
    # An artifact that breaks a rule has no score.
    load = checks_of_golf.load

    def load_looking_ahead(artifact: Artifact, device: str) -> GPT:
        model = load(artifact, device)
        mlp = model.blocks[0].mlp
        plain = mlp.forward
        monkeypatch.setattr(mlp, "forward", lambda x: plain(x) + x.mean(dim=1, keepdim=True))
        return model

    scores = base / "golf_documents/tiny-no-qat-2-choose"
    shutil.rmtree(scores)
    again = documents.Config(tag="tiny-no-qat-2", strides="128", eval_bytes=3000)
    with monkeypatch.context() as broken:
        broken.setattr(checks_of_golf, "load", load_looking_ahead)
        with pytest.raises(UserError, match=r"^causal: a changed token moves earlier scores"):
            documents.main(again)
    assert not (scores / "outcome.json").exists()
    documents.main(again)
    path = base / "golf_documents/tiny-no-qat-1-choose/outcome.json"
    other = read_json(path)
    other["metrics"]["Text"] = "another"
    write_json(path, other)
    with pytest.raises(ValueError, match=r"the runs differ in Text \(.*\), and cannot be compared: use another --tag"):
        verdicts.main(verdicts.Config(tag="tiny", arms="no-qat,no-overlap", seeds=2))
    path.unlink()
    with pytest.raises(ValueError, match="tiny-no-qat-1 has no scores of the selection text: run tracks"):
        verdicts.main(verdicts.Config(tag="tiny", arms="no-qat,no-overlap", seeds=2))


def test_the_rows_runs_are_spread_over_the_first_seeds_of_the_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "seed_counts", lambda *_: {"seed": 3, "rope-all": 3, "xsa-4": 1, "no-qat": 3})
    monkeypatch.setattr(claims, "open_report", lambda *_: None)
    config = claims.settle(claims.Config(scale="embedded", tag="order", data="world", arms="rope-all,xsa-4,no-qat"))
    runs = [step.name.removesuffix("-train") for step in claims.steps(config) if step.name.endswith("-train")]
    assert runs == [
        *("seed-1", "rope-all-1", "xsa-4-1", "no-qat-1", "seed-2", "seed-3"),
        *("rope-all-2", "no-qat-2", "rope-all-3", "no-qat-3"),
    ]


def test_the_plan_tells_the_hours_and_starts_nothing(series, base) -> None:
    said = series("tracks.golf.claims", "--plan", "--data=letters").stdout
    assert "13 to 33 runs are left: " in said
    beside = 560 + claims.BESIDE["cpu"]
    row = 3 * (beside + claims.RESCORED["cpu"])
    least, most = ((row + count * beside) / 3600 for count in (10, 30))
    assert f"{least:.1f} to {most:.1f} hours on two quiet cores" in said
    assert re.search(
        r"^\| rope-all +\| RoPE on half of the channels +\| all channels +\| 1 or 3 +\| 0 ", said, re.MULTILINE
    )
    assert re.search(r"^\| no-overlap .*\| the row's runs +\| - ", said, re.MULTILINE)
    few = series("tracks.golf.claims", "--plan", "--scale=embedded", "--arms=no-qat", "--num-iterations=5", "--seeds=1")
    assert "2 to 2 runs are left: hours are not known before the first run has finished" in few.stdout
    assert not (base / "claims").exists()


MISTAKES = [
    ("--arms=luck", "--arms: luck is not known, choose from rope-all"),
    ("--seeds=0", "--seeds has to be 1 or more"),
    ("--seed=4", "--seed differs between runs: use --seeds"),
    ("--without=smear", "--without differs between runs: use --arms"),
    ("--max-seq-len=64", "the row is scored with stride 128: --max-seq-len has to be 128 or more"),
    ("--eval-bytes=-1", "--eval-bytes has to be 0 or more, not -1"),
    ("--flags=--eval-bytes=-1", "--eval-bytes=-1 in --flags: write a number of bytes, 1 or more, or leave it out"),
    ("--flags=--eval-bytes=0", "--eval-bytes=0 in --flags: write a number of bytes, 1 or more, or leave it out"),
    ("--flags=--eval-bytes=few", "--eval-bytes=few in --flags: write a number of bytes, 1 or more, or leave it out"),
    ("--max-seq-len=abc", "--max-seq-len: abc is not a whole number"),
    ("--target-seconds=abc", "--target-seconds: could not convert string to float: 'abc'"),
    ("--width=33", "--width=33 is not a multiple of --head-dim=16"),
    ("--scale=1gpu", "invalid choice '1gpu' for argument '--scale'"),
]


@pytest.mark.parametrize(("flag", "sentence"), MISTAKES)
def test_a_mistake_in_a_flag_is_found_first(series, base, flag: str, sentence: str) -> None:
    words = [] if flag.startswith("--scale") else ["--scale=embedded"]
    refused = series("tracks.golf.claims", *words, "--tag=mistaken", "--data=letters", flag, code=2)
    assert sentence in refused.stderr
    assert not (base / "tok_train").exists()
