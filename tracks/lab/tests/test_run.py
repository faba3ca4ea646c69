"""tracks.lab.run on a tiny base model: four runs of three steps, killed midway, and looks at a held-out benchmark."""

import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from bundles import HARD, write_bundle
from chat_files import write_lines
from tune_runs import FromParent, sums

from nanochat.paths import hold_folder, read_json

LIMIT = 280  # seconds
SPEC = """
question = "Do letters help?"
stage = "chat_sft"
source = "base"
bases = ["parent"]
seeds = [1, 2]
methods = ["ties", "soup"]
budget = { num_iterations = 3 }
flags = "--total-batch-size=512 --eval-every=-1 --dtype=fp32 --no-compile"
[merges]
both = { plain = 1, letters = 1 }
[mixes]
plain = "json:FOLDER/chats.jsonl"
letters = "json:FOLDER/chats.jsonl,ARC-Easy@50"
[benchmarks]
dev = ["ARC-Easy", "hard_choices"]
stable = ["MMLU"]
held_out = ["ARC-Challenge"]
"""


class Lab:
    """A base model, a spec, and the command."""

    def __init__(self, folder: Path, python: str) -> None:
        self.python = python
        self.folder = FromParent(folder, "chat_sft", []).folder
        write_lines(folder / "chats.jsonl", *sums(60))
        write_bundle(self.folder / "hub", HARD)
        self.home, self.spec, self.ledger = folder / "lab/mix", folder / "mix.toml", folder / "mix.looks.txt"
        self.spec.write_text(SPEC.replace("FOLDER", str(folder)))

    def start(self, *flags: str) -> subprocess.Popen[str]:
        command = [self.python, "-m", "tracks.lab.run", f"--spec={self.spec}", "--jobs=2", *flags]
        places = {"NANOCHAT_BASE_DIR": f"{self.folder}", "NANOCHAT_HUB": f"{self.folder}/hub", "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=os.environ | places, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def run(self, *flags: str) -> tuple[int, str]:
        """Return the exit status and the text."""
        process = self.start(*flags)
        text, _ = process.communicate(timeout=LIMIT)
        return process.returncode, text

    def forget_looks(self) -> None:
        self.ledger.unlink(missing_ok=True)
        for path in self.home.parent.glob("looks-*"):
            path.unlink()

    def finished(self) -> list[str]:
        records = self.home.glob("*-train.json")
        return [path.stem for path in records if read_json(path)["finished"]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, quick) -> Lab:
    """All runs have ended; the lab was killed after the first. The held-out task cannot be opened."""
    lab = Lab(tmp_path_factory.mktemp("lab"), quick)
    for path in lab.folder.glob("hub/**/*ARC-Challenge*/**/*.parquet"):
        path.rename(path.with_suffix(".whole"))
        path.write_bytes(b"this raises when it is opened")
    end = time.monotonic() + LIMIT
    killed = lab.start()
    while not lab.finished():
        assert time.monotonic() < end, "no run has finished"
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    killed.kill()
    before = lab.finished()
    # Steps that were at work end by themselves.
    is_free = False
    while not is_free:
        assert time.monotonic() < end, "a step goes on"
        time.sleep(0.05)
        with suppress(ValueError), hold_folder(lab.home):
            is_free = True
    code, text = lab.run()
    assert code == 0, text
    for step in before:
        assert f"{step}: already finished" in text
    return lab


def test_a_killed_lab_loses_no_run(lab) -> None:
    assert len(lab.finished()) == 4
    outcome = read_json(lab.home / "outcome.json")
    assert [row[:2] for row in outcome["tables"][1]["rows"]] == [["plain", "2 of 2"], ["letters", "2 of 2"]]
    made = read_json(lab.folder / "chat_sft/mix-parent-both-ties-1-1/step_000003/manifest.json")["merge"]
    assert [model["tag"] for model in made["models"]] == ["mix-parent-plain-1-1", "mix-parent-letters-1-1"]
    # Nothing learned in three steps can be shown.
    [one] = read_json(lab.home / "recommendation.json")["recommendation"]
    assert one["verdict"] == "scale up"


def test_a_run_that_fails_is_a_hole_with_its_reason(lab) -> None:
    name = write_lines(lab.folder / "broken.jsonl", {"messages": 1})
    spec = lab.folder / "more.toml"
    text = lab.spec.read_text().replace("[benchmarks]", f'broken = "{name}"\n[benchmarks]')
    spec.write_text(text.replace("[merges]", "[merges]\nnone = { plain = 1, broken = 1 }"))
    code, text = lab.run(f"--spec={spec}", "--tag=mix")
    # Four runs and four merges of three steps, and the two evaluations of the base.
    assert (code, text.count("already finished")) == (0, 26), text
    outcome = read_json(lab.home / "outcome.json")
    assert outcome["metrics"]["Runs"] == "6, 2 of them left out"
    *_, (mix, seeds, reason, *_) = outcome["tables"][1]["rows"]
    assert (mix, seeds, "broken.jsonl:1: " in reason) == ("broken", "0 of 2", True)


def test_held_out_benchmarks_are_opened_by_final_alone_and_looks_count(lab) -> None:
    assert not lab.ledger.exists()
    for path in lab.folder.glob("hub/**/*.whole"):
        path.rename(path.with_suffix(".parquet"))
    code, text = lab.run("--final")
    assert (code, "Scores, held out, look 1" in text) == (0, True), text
    # The reference alone: nothing is recommended.
    tags = {path.name for path in lab.folder.glob("chat_eval_sft/*-held-out")}
    assert tags == {f"mix-parent-plain-1-{seed}-held-out" for seed in (1, 2)}
    code, text = lab.run("--final")
    # The same models again.
    assert ("look 1" in text, text.count("already finished"), ": done in" in text) == (True, 26 + 2, False)

    lab.spec.write_text(lab.spec.read_text() + "\n# another hash\n")
    assert "look 2, no longer held out" in lab.run("--final")[1]
    lab.ledger.write_text(lab.ledger.read_text().replace("plain", "letters"))
    code, text = lab.run()
    assert (code, text.count("\n"), "mix.looks.txt was edited" in text) == (2, 1, True)
    lab.forget_looks()


def test_without_checkpoints_nothing_is_trained_again(lab) -> None:
    code, text = lab.run("--keep=none")
    assert (code, text.count(" are deleted")) == (0, 8), text
    assert not list(lab.folder.glob("chat_sft/*/step_*"))
    code, text = lab.run("--final")
    assert (code, text.count("already finished"), ": done in" in text) == (0, 26 + 2, False), text
    lab.forget_looks()
    for path in lab.folder.glob("chat_eval_sft/*-held-out/outcome.json"):
        path.unlink()
    code, text = lab.run("--final")
    assert (code, lab.ledger.exists()) == (2, False)
    assert "chat_sft/mix-parent-plain-1-1 has no checkpoint any more" in text


def test_the_noise_of_evaluations(lab) -> None:
    spec = lab.folder / "noise.toml"
    more = "[sampling]\ntemperature = 1.0\nmax_problems = 8\n"
    spec.write_text(lab.spec.read_text().replace('dev = ["ARC-Easy"]', 'dev = ["ARC-Easy~styles:1"]') + more)
    code, text = lab.run(f"--spec={spec}", "--kind=variance")
    assert (code, "--kind=variance needs repeats" in text) == (2, True), text
    spec.write_text("repeats = 2\n" + spec.read_text())
    code, text = lab.run(f"--spec={spec}", "--kind=variance")
    assert (code, "Noise of one evaluation" in text) == (0, True), text
    assert (lab.folder / "chat_eval_base/noise-variance-parent/outcome.json").exists()


@pytest.mark.slow
def test_rates_are_searched(lab) -> None:
    """17 runs of three steps; killed searches go on, since finished runs are steps that are skipped.

    They need no checkpoints.
    """
    spec = lab.folder / "rates.toml"
    text = lab.spec.read_text().replace("eval-every=-1", "eval-every=0").replace("seeds = [1, 2]", "seeds = [1]")
    # One mix, and no merges of two.
    left_out = ("methods = ", "[merges]", "both = ", "letters = ")
    lines = [line for line in text.splitlines() if not line.startswith(left_out)]
    spec.write_text("\n".join(lines))
    code, text = lab.run(f"--spec={spec}", "--kind=rates", "--keep=none")
    assert (code, "plain on parent: the best rate is" in text or "is beyond" in text) == (0, True), text
    done = re.findall(r"== (.*-train): done in", text)
    assert len(set(done)) == len(done) > 15
    assert list(lab.folder.glob("chat_sft/rates-rates-*/step_*")) == []
    code, text = lab.run(f"--spec={spec}", "--kind=rates")
    assert set(re.findall(r"== (.*): already finished", text)) == set(done)
    assert ": done in" not in text


def test_preferences_are_a_stage(lab) -> None:
    """Two files of pairs as mixes; a run finds its file from wherever it works. Bits of a text count too."""
    rows = [{"prompt": f"Add {number}.", "chosen": f"{number} it is", "rejected": "no"} for number in range(16)]
    for name in ("some", "more"):
        write_lines(lab.folder / f"{name}.jsonl", *rows[: 12 if name == "some" else 16])
    spec = lab.folder / "dpo.toml"
    text = lab.spec.read_text().replace("chat_sft", "chat_dpo")
    text = text.replace("--total-batch-size=512", "--held-out=0.25 --examples-per-step=4")
    text = text.replace(f"json:{lab.folder}/chats.jsonl,ARC-Easy@50", f"{lab.folder}/more.jsonl")
    text = text.replace(f"json:{lab.folder}/chats.jsonl", f"{lab.folder}/some.jsonl").replace("held_out = ", "# ")
    text = text.replace('"hard_choices"]', '"hard_choices", "bpb"]')
    text = text.replace("methods =", f'text = "{lab.folder}/letters"\ntext_bytes = 500\nmethods =')
    spec.write_text(
        text.replace("[merges]\nboth = { plain = 1, letters = 1 }\n", "").replace("seeds = [1, 2]", "seeds = [1]")
    )
    code, text = lab.run(f"--spec={spec}", "--keep=none")
    assert code == 0, text
    outcome = read_json(lab.folder / "chat_dpo/dpo-parent-letters-1-1/outcome.json")
    assert outcome["config"]["pairs"] == f"{lab.folder}/more.jsonl"
    assert outcome["config"]["init_lr_frac"] == 0.015
    assert list(lab.folder.glob("chat_dpo/dpo-*/step_*")) == []  # each went when it was evaluated
    assert text.index("letters-1-1-prune: done in") > text.index("letters-1-1-eval: done in")
    assert (lab.folder / "chat_eval_dpo/dpo-parent-letters-1-1/outcome.json").exists()
    measured = read_json(lab.folder / "base_loss_dpo/dpo-parent-letters-1-1/outcome.json")
    assert (measured["metrics"]["Data"], measured["metrics"]["Bytes"]) == ("letters", 500)
    assert {"all bpb"} == {name for name in measured["metrics"] if name.endswith("bpb")}
    scores = read_json(lab.folder / "lab/dpo/outcome.json")["tables"][1]
    assert scores["columns"][-2][0] == "bpb"
    assert "(one seed: no error)" in scores["rows"][0][-2]["unit"]
    (lab.folder / "more.jsonl").unlink()
    code, text = lab.run(f"--spec={spec}", "--plan")
    assert (code, f"the mix letters: there is no file {lab.folder}/more.jsonl" in text) == (2, True), text


def test_a_benchmark_is_a_task_of_conversations_or_of_core(lab) -> None:
    spec = lab.folder / "tasks.toml"
    spec.write_text(lab.spec.read_text().replace('"hard_choices"', '"piqa"'))
    code, text = lab.run(f"--spec={spec}", "--plan")
    assert (code, "piqa is not a task, choose from " in text, "or a task of CORE: hard_choices" in text) == (
        2,
        True,
        True,
    )
    bundle = lab.folder / "hub/eval_bundle"
    bundle.rename(bundle.with_name("elsewhere"))
    code, text = lab.run("--plan")
    bundle.with_name("elsewhere").rename(bundle)
    assert (code, "hard_choices is not a task, choose from " in text and "; CORE's tasks cannot be read: " in text) == (
        2,
        True,
    ), text


def test_bad_input_is_refused(lab, tmp_path) -> None:
    path = tmp_path / "wrong.toml"
    wrong = SPEC.replace("ARC-Easy@50", "ARC-Esy@50").replace('["MMLU"]', '["MLU"]').replace("FOLDER", "/no")
    path.write_text(wrong.replace("no-compile", "no-compille"))
    code, text = lab.run(f"--spec={path}")
    assert (code, text.splitlines()[0]) == (2, f"error: {path}:")
    for part in (
        "the mix plain: there is no file /no/chats.jsonl",
        "the mix letters: ARC-Esy is not a task",
        "  MLU is",
        "  flags, sampling or methods: unknown argument --no-compille",
    ):
        assert part in text
    minimal = 'minimal = ["arc-easy%60"]\nstage'
    shares = (
        SPEC.replace('chats.jsonl"', 'chats.jsonl%30,ARC-Easy%70"').replace("@50", "%50").replace("jsonl,", "jsonl%50,")
    )
    path.write_text(shares.replace("FOLDER", str(lab.folder)).replace("stage", minimal, 1))
    code, text = lab.run(f"--spec={path}")
    assert (code, "the mix letters has less than minimal = arc-easy%60" in text, "mix plain" in text) == (
        2,
        True,
        False,
    )
    assert lab.run("--spec=") == (2, "error: name the file that describes the lab: --spec=FILE\n")


def test_what_is_not_distinguishable_gets_more_seeds(lab) -> None:
    """The runs with the first seeds are those of the lab before."""
    spec = lab.folder / "seeds.toml"
    text = re.sub(r"\[merges\]\n.*\n", "", lab.spec.read_text()).replace(
        "seeds = [1, 2]", "seeds = [1, 2]\nmore_seeds = [3]"
    )
    spec.write_text(text)
    for again in (False, True):
        code, text = lab.run(f"--spec={spec}", "--tag=mix")
        assert (code, "2 runs with more seeds" in text, ": done in" in text) == (0, True, not again), text
        rows = read_json(lab.home / "outcome.json")["tables"][1]["rows"]
        assert [row[:2] for row in rows] == [["plain", "3 of 3"], ["letters", "3 of 3"]]
    assert (lab.folder / "chat_sft/mix-parent-letters-1-3/outcome.json").exists()
