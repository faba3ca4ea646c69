"""The named runs of runs/, as a user starts them, in a copy of the folder with this environment."""

import os
import re
import shutil
import subprocess

import pytest
import torch
from conftest import ROOT, checked, copy_runs, plant_world

from nanochat.jobs.scales import read_flags
from nanochat.paths import write_text
from tracks.golf.entries import BASELINES, expand, tricks_of

SMALL = ["--aspect-ratio=32", "--head-dim=32", "--max-seq-len=128", "--total-batch-size=256", "--device-batch-size=2"]
SMALL += "--vocab-size=300 --no-compile --dtype=fp32 --eval-bytes=3000 --eval-every=0 --sample-every=-1".split()
ROW = re.compile(r"^\| (\S+-d\d+) +\| (\d+) +\|(?: +[\d.,]+ +\|){3} (\S+) +\| \S+ +\| (\S+) +\| \S+ +\|$", re.M)


@pytest.fixture
def runs(tmp_path, base, text_folder, quick):
    """A function that starts a script of runs/ in the folder that has `letters`."""
    home = tmp_path / "a path with spaces"
    python = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{quick}" "$@"\n'
    copy_runs(home, {".venv/bin/python": python, "speedrun.sh": 'echo "$@"\n'})

    def run(name: str, *flags: str, code: int = 0):
        env = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        words = ("bash", str(home / "runs" / name), *flags)
        return checked(subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True), code)

    return run


def test_a_miniseries_is_a_table_and_a_plot_and_resumes(runs, base, tmp_path):
    flags = ["--data=letters", "--tag=mini", "--out=mini.md", *SMALL, "--target-param-data-ratio=0.01"]
    runs("miniseries.sh", "--depths=2", *flags)
    ended = {path: path.stat().st_mtime_ns for path in base.glob("*_train/*/outcome.json")}
    assert len(ended) == 2
    # Again with one depth more: what has ended stays as it is.
    two = runs("miniseries.sh", "--depths=2,1", *flags)
    assert two.stdout.count("the run ended at step") == 1
    assert ended == {path: path.stat().st_mtime_ns for path in ended}
    text = (tmp_path / "mini.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert [(tag, depth) for tag, depth, *_ in rows] == [("mini-d1", "1"), ("mini-d2", "2")]
    assert re.search(r"^\| Bits per byte +\| -?\d\.\d{4} ", text, re.MULTILINE)
    assert "![Bits per byte against compute](mini/scaling-mini-1.svg)" in text
    assert (tmp_path / "mini/scaling-mini-1.svg").exists()
    other = runs("miniseries.sh", "--depths=2", *flags, "--vocab-size=310", code=2)
    assert other.stderr == "error: the vocabulary of --tag=mini has --vocab-size=300, not 310: take another --tag\n"


@pytest.mark.slow
def test_scaling_laws_end_with_the_ratio_that_they_suggest(runs, tmp_path):
    sweeps = ["--sweep=4e9:1,2,3", "--sweep=1e10:1,2,3"]
    runs("scaling_laws.sh", "--data=letters", *sweeps, "--out=laws.md", *SMALL, "--warmup-steps=5")
    text = (tmp_path / "laws.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    tags = [f"scaling-{budget}-d{depth}" for depth in (1, 2, 3) for budget in ("4e9", "1e10")]
    assert [row[0] for row in rows] == tags
    for tag, *_, flops, _ in rows:
        assert float(flops) == pytest.approx(float(tag.split("-")[1]), rel=0.05)
    assert "### The best size of each budget" in text
    assert "![Bits per byte at fixed compute](laws/scaling-scaling-1.svg)" in text
    assert "1e+10 FLOPs</text>" in (tmp_path / "laws/scaling-scaling-1.svg").read_text(encoding="utf-8")


def test_an_evening_on_a_laptop_is_a_scale_of_the_main_job_and_phases_are_presets(runs):
    assert runs("cpu.sh", "--data=my text", "--tag=mine").stdout == "--scale=cpu --data=my text --tag=mine\n"
    # The plans of a recursive model's phases; the tests of the training script have recursive runs.
    for phase, preset in (("fast", "aggressive"), ("extreme", "extreme")):
        done = runs(f"train_h100_{phase}.sh", "--data=letters", *SMALL, "--dry-run")
        assert f"recursion {preset}: each block runs 4 exits x 1 passes x (2 loops + 1) times" in done.stdout


@pytest.mark.slow
def test_recursion_on_puzzles_ends_with_a_table(runs):
    flags = ["--data=letters", "--steps=3", "--width=32", "--depth=1", "--seeds=1"]
    done = runs("puzzles.sh", *flags)
    table = done.stdout[done.stdout.index("Sudoku-4: 200 held-out problems") :].splitlines()
    assert [line.split()[1] for line in table[1:]] == ["Arm", "---", "R", "P", "W"]


@pytest.mark.slow
def test_recursion_is_compared_with_its_compute(runs, tmp_path):
    flags = ["--data=letters", "--steps=20", "--depth=1", "--width=32", "--seeds=2", *SMALL, "--eval-every=5"]
    flags += ["--max-seq-len=64", "--out=card/recursion.md", "--save-every=10"]
    one = runs("recursion.sh", *flags)
    assert "\nVerdict: " in one.stdout
    card = (tmp_path / "card/recursion.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    again = runs("recursion.sh", *flags)
    assert again.stdout.count("nothing is left to train") == 10


def test_chat_data_has_no_planted_row(runs, base, tiny_world, tmp_path):
    plant_world(base, tiny_world)
    runs("data.sh", "--rows=40", "--vocab-size=300")
    card = (tmp_path / "data.md").read_text(encoding="utf-8")
    assert "## Chat data" in card
    for cause in ("contamination", "exact", "images", "long", "near"):
        assert re.search(rf"^\| {cause} +\| facts ", card, re.MULTILINE), cause
    wrong = runs("data.sh", "--vocab-size=300", "--tag=wrong", "--filters=turn", code=2)
    assert wrong.stderr.startswith("error: --filters: turn is not known")
    assert not (base / "tok_train/wrong").exists()
    unfiltered = runs("data.sh", "--rows=40", "--vocab-size=300", "--tag=all", "--filters=turns,long", code=2)
    assert unfiltered.stderr == "error: planted rows are left in these files\n"
    assert f"{base}/chats/all/facts-00000.jsonl\n" in unfiltered.stdout


GOLF = ["--scale=embedded", "--data=letters", "--tag=links", "--out=golf.md", "--vocab-size=300", "--unsafe-exec"]
FLAGS = "--num-iterations=4 --depth=1 --width=32 --head-dim=16 --max-seq-len=64 --total-batch-size=256 --no-compile"
FLAGS = [*FLAGS.split(), "--dtype=fp32", "--eval-bytes=3000", "--eval-every=0"]
FEW_TRICKS = "--model=golf,tie_embeddings=false,smear=false,induction=false,mlp=relu2,backout=false"


def test_golf_scores_an_entry_and_ends_with_a_comparison(runs, base, tmp_path):
    flags = [*GOLF, *FLAGS, FEW_TRICKS, "--seeds=1", "--ablate"]
    # A score with other settings ends the script after the entry; then copies of the entry are all other runs.
    other = base / "golf_eval/links-naive-narrow-1/settings"
    write_text(other, "other\n")
    stopped = runs("golf.sh", *flags, code=2)
    assert stopped.stderr == "error: links-naive-narrow-1 was scored with other settings: take another --tag\n"
    given = read_flags([*FLAGS, FEW_TRICKS])
    tricks = tricks_of(given)
    assert "narrow MLP" in tricks
    rows = {entry: {"--entry": entry} for entry in BASELINES}
    rows |= {f"golf-without-{trick.replace(' ', '-')}": {"--without": trick} for trick in tricks}
    for name, row in rows.items():
        for stage in ("base_train", "golf_pack", "golf_eval"):
            shutil.copytree(base / stage / "links-golf-1", base / stage / f"links-{name}-1", dirs_exist_ok=True)
        row = expand(given | row)
        plan = row.pop("--plan")
        words = [f"{flag}={value}" if value else flag for flag, value in row.items()]
        settings = "\n".join(["embedded", "letters", *words, plan])
        (base / f"golf_eval/links-{name}-1/settings").write_text(f"{settings}\n")
    ended = runs("golf.sh", *flags)
    assert "== " not in ended.stdout  # all runs are scored
    text = (tmp_path / "golf.md").read_text(encoding="utf-8")
    assert "Entries, against the best baseline" in text
    assert "golf-without-narrow-MLP" in text


@pytest.mark.slow
def test_golf_repeats_the_best_baseline_and_resumes(runs, base):
    flags = [*GOLF, *FLAGS, "--seeds=2"]
    runs("golf.sh", *flags)
    tags = {path.name for path in base.glob("golf_eval/*")}
    again = {f"links-{entry}-2" for entry in BASELINES}
    first = {f"links-{entry}-1" for entry in ("golf", *BASELINES)}
    assert tags - again == first | {"links", "links-golf-2"}
    assert len(tags & again) == 1  # the best baseline alone has a second seed
    again = runs("golf.sh", *flags)
    assert "== " not in again.stdout  # all entries are scored


GOLF_WORDS, RECURSION_WORDS = ["--scale=embedded", "--tag=mistaken"], ["--data=letters", *SMALL]
# script flag | beginning of the sentence. Where there is a GPU, --scale=1gpu would train.
MISTAKES = """
golf --seeds=none | --seeds=none has to be a number from 1
golf --without=smear | --without is a flag of tracks.golf.entries: --ablate leaves out each trick
golf --width=33 | --width=33 is not a multiple of --head-dim=32
recursion --seeds=abc | --seeds=abc has to be a number from 1
recursion --seed=7 | --seed differs between arms: give --seeds, --preset or --steps
recursion --preset=off | --preset=off is no recursion: take moderate, aggressive or extreme
"""
MISTAKES += "" if torch.cuda.is_available() else "golf --scale=1gpu | --scale=1gpu needs a GPU: take --scale=embedded"


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_in_a_flag_is_found_first(runs, case):
    words, sentence = case.split(" | ")
    script, flag = words.split()
    usual = GOLF_WORDS if script == "golf" else RECURSION_WORDS
    assert runs(f"{script}.sh", *usual, flag, code=2).stderr.startswith(f"error: {sentence}")
