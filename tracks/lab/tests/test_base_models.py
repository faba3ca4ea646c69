"""Labs of base models: made runs with known truth, what makes no sense, and a small lab of real runs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from outcomes import leave

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.outcome import Outcome
from nanochat.paths import read_json, tokenizer_file, write_jsonl, write_text
from scripts import base_eval, base_loss, base_train
from tracks.lab import findings
from tracks.lab.kinds import flag_mistakes, refused_flags, search_rates, task_mistakes
from tracks.lab.run import Config
from tracks.lab.sweep import Spec, base_chains, disk_needed, expectations, mistakes, planned_training, read_spec
from tracks.lab.sweep import run_steps as steps_of
from tracks.lab.tests.made_labs import BASE_SPEC, BaseLab

# Bits per byte below the reference, the same in all seeds but for a little noise.
BETTER = {"plain": 0.0, "better": 0.05, "same": 0.0}


def read_lab(folder: Path, *changes: tuple[str, str], text: str = "world") -> Spec:
    words = BASE_SPEC.replace("TEXT", text)
    for old, new in changes:
        assert old in words
        words = words.replace(old, new)
    write_text(folder / "lab.toml", words)
    return read_spec(folder / "lab.toml")


@pytest.fixture
def base(base: Path) -> Path:
    """A base folder with a file in the place of the tokenizer."""
    write_text(tokenizer_file("default"), "{}")
    return base


def make_runs(base: Path, spec: Spec) -> None:
    """Leave all runs: seeds differ by far more than mixes do."""
    noise = np.random.default_rng(3)
    for run in spec.runs:
        tag = spec.tag_of(run)
        path = leave(base, "base_train", tag, metrics={"Total training flops": {"value": 1e15}}, seconds=100.0)
        write_jsonl(path.with_name("metrics.jsonl"), [{"kind": "validation", "step": 4, "val/bpb": 2.0}])
        bits = 1.5 + 0.3 * run.seed - BETTER[run.mix] + noise.normal(0, 0.001)
        leave(base, "base_loss", tag, metrics={"val bpb": {"value": bits, "stderr": 0.1}}, seconds=10.0)
        folder = leave(base, "base_eval", tag, seconds=10.0).parent
        right = np.random.default_rng(run.seed).random(50) < 0.5
        rows = [{"item": number, "question": f"{number}", "correct": bool(one)} for number, one in enumerate(right)]
        write_jsonl(folder / "world_people.jsonl", rows)


def begin(spec: Spec) -> Outcome:
    return Outcome.begin("lab", spec.name, Config(spec="lab.toml"))


def test_steps_are_commands_of_the_scripts(base: Path) -> None:
    spec = read_lab(base)
    assert (mistakes(spec), flag_mistakes(spec), base_chains(spec)) == ([], [], [])
    better = next(run for run in spec.runs if run.mix == "better")
    training, loss, evaluation = steps_of(spec, better)
    config = parse(base_train.Config, training.command[1:])
    assert (config.matrix_lr, config.embedding_lr, config.window_pattern) == (0.02, 0.3, "L")
    assert (config.seed, config.num_iterations, config.tokenizer_tag) == (1, 4, "default")
    assert (training.parent, training.data) == ("tok_train/default", "world")
    assert parse(base_loss.Config, loss.command[1:]).eval_bytes == 2000
    scored = parse(base_eval.Config, evaluation.command[1:])
    assert (scored.source, scored.tasks, scored.max_per_task) == ("base", "world_people", 4)
    assert loss.parent == evaluation.parent == training.output
    [_, held_out] = steps_of(spec, better, is_held_out=True)
    assert held_out.output == f"{evaluation.output}-held-out"
    assert parse(base_eval.Config, held_out.command[1:]).tasks == "world_places"
    # A rate is a factor of the mix's own rate, and of the default.
    fast = read_lab(base, ("seeds = [1, 2, 3]", "seeds = [1]\nrates = [10.0]"))
    config = parse(base_train.Config, steps_of(fast, fast.runs[0])[0].command[1:])
    assert (config.matrix_lr, config.embedding_lr, config.unembedding_lr, config.scalar_lr) == (0.1, 3.0, 0.08, 5.0)


def test_budgets(base: Path) -> None:
    by_tokens = read_lab(base, ("num_iterations = 4", "tokens = 4096"), ("--weight-decay=0", "--total-batch-size=512"))
    steps = {
        run.mix: parse(base_train.Config, steps_of(by_tokens, run)[0].command[1:]).num_iterations
        for run in by_tokens.runs
    }
    assert steps == {"plain": 16, "better": 16, "same": 8}
    by_work = read_lab(base, ("num_iterations = 4", "flops = 1e12"))
    assert mistakes(by_work) == []
    config = parse(base_train.Config, steps_of(by_work, by_work.runs[0])[0].command[1:])
    assert (config.target_flops, config.num_iterations) == (1e12, -1)
    spelled = read_lab(
        base, ("num_iterations = 4", "tokens = 4096"), (" --total-batch-size=256", " --total_batch_size 256")
    )
    assert mistakes(spelled) == []
    lacking = read_lab(base, ("num_iterations = 4", "tokens = 4096"), (" --total-batch-size=256", ""))
    assert mistakes(lacking)[0] == "a budget in tokens needs --total-batch-size in flags, or in the mix plain"


def test_what_makes_no_sense_for_base_models(base: Path) -> None:
    spec = read_lab(
        base,
        ("seeds = [1, 2, 3]", 'source = "base"\nreplicas = { default = ["other"] }\nrepeats = 2\nseeds = [1]'),
        ('held_out = ["world_places"]', 'held_out = ["bpb"]\nstable = ["world_cloze"]'),
        ("flags = ", "text_bytes = 100\nflags = "),
        ("[benchmarks]", "[merges]\nboth = { plain = 1, same = 1 }\n[benchmarks]"),
        ("max_problems = 4", "temperature = 1.0"),
        ("--weight-decay=0", "--seed=3 --data=climbmix"),
        ('dev = ["bpb", "world_people"]', 'dev = ["bpb"]'),
        ("[mixes]", 'minimal = ["ARC-Easy"]\n[mixes]'),
        ("--window-pattern=L", "--window-pattern=L --eval_bytes=4000"),
    )
    found = mistakes(spec)
    for sentence in (
        "the tokenizer other is not in ",
        "two runs, or two lists of benchmarks, have bpb",
        "minimal is for mixes of conversations, which base_train has not",
        "source is the stage of models, and the bases of base_train are tags of tokenizers: leave it out",
        "replicas are further trainings of a base, and base_train trains the bases: use more seeds",
        "merges need models with one parent, which runs of base_train have not",
        "stable compares a run with the model it begins with, which base_train has not: use dev",
        "repeats and slots are for sampled answers, and base models are scored without sampling",
        "base models are scored without sampling: of [sampling] keep max_problems alone",
        "bpb cannot be held out: it is measured after each training",
        "text_bytes is --eval-bytes in the flags of base_train: set it there",
        "the mix same has --seed, which the lab sets itself",
        "the mix better has --eval-bytes, but bpb of all mixes is measured on the same bytes: set it in flags",
        "mixes with other --data need text: the one on which bpb of all is measured",
    ):
        assert [one for one in found if one.startswith(sentence)], sentence
    tuned = ('stage = "base_train"', 'stage = "mid_train"')
    found = mistakes(read_lab(base, tuned, ("num_iterations = 4", "flops = 1e12")))
    assert "bpb needs text: the one on which it is measured, after training on conversations" in found
    assert "a budget in flops is for base_train: use num_iterations or tokens" in found
    [refused] = refused_flags(Config(spec="lab.toml", kind="variance"), read_lab(base))
    assert refused == "--kind=variance is for sampled answers, and base models are scored without sampling"
    for words in ("--eval-every=-1", "--eval_every -1"):
        silent = read_lab(base, ("--weight-decay=0", words))
        [refused] = refused_flags(Config(spec="lab.toml", kind="rates"), silent)
        assert refused == "--kind=rates needs the validation bits per byte: set --eval-every=0 in flags"


def test_chat_benchmarks_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [SimpleNamespace(label=label) for label in ("world_people", "world_places")]
    monkeypatch.setattr("tracks.lab.kinds.open_core", lambda tokenizer: ("CORE", tasks))
    assert task_mistakes(read_lab(base)) == []
    assert task_mistakes(read_lab(base, ('"bpb", "world_people"', '"bpb", "GSM8K"'))) == [
        "GSM8K is no benchmark of base models, which do not chat: use bpb, world_people, world_places"
    ]


def test_bits_per_byte_are_paired_by_seed(base: Path) -> None:
    """Seeds differ by 0.3, and the mix by 0.05, which only pairs can show."""
    spec = read_lab(base)
    make_runs(base, spec)
    results = findings.read_results(spec, spec.runs)
    gains = findings.gains_of(spec, results)
    better = gains["default", "better", "bpb"]
    assert better.mean == pytest.approx(-0.05, abs=0.005)
    assert (better.freedom, better.shown, better.in_bits) == (2, "gain", True)
    assert gains["default", "same", "bpb"].shown == findings.significance.UNCLEAR
    verdicts = {one.mix: one for one in findings.verdicts_on(spec, results)}
    assert (verdicts["better"].verdict, verdicts["same"].verdict) == ("keep", "scale up")
    assert "bpb -0.05" in verdicts["better"].reason
    assert "bits per byte" in verdicts["better"].reason
    assert "one training" not in verdicts["better"].reason  # each seed is one
    findings.write_report(spec, begin(spec), results, [])
    record = read_json(base / "lab/lab/outcome.json")
    tables = {table["title"]: table["rows"] for table in record["tables"]}
    assert tables["Mixes"][0] == ["plain", "--matrix-lr=0.01"]
    cells = {row[0]: row[2] for row in tables["Scores, default"]}
    assert (cells["better"]["format"], cells["better"]["unit"]) == (".4f", " ▲")
    assert cells["plain"]["value"] == pytest.approx(2.1, abs=0.01)
    assert [row[:3] for row in tables["Differences from the reference, bits per byte"]] == [
        ["default", "better", "bpb"],
        ["default", "same", "bpb"],
    ]
    assert {row[2] for row in tables["Differences from the reference"]} == {"world_people"}
    assert {row[2] for row in tables["Best seeds"]} == {"world_people"}
    # Nine runs of 100 seconds, and two evaluations of 10 each; no base is evaluated.
    assert next(row[:4] for row in tables["Cost"]) == ["Recipe", 9, 1080.0, 9e15]


def test_a_broken_run_takes_its_pair_along(base: Path) -> None:
    spec = read_lab(base)
    make_runs(base, spec)
    lost = spec.tag_of(next(run for run in spec.runs if (run.mix, run.seed) == ("plain", 2)))
    (base / "base_train" / lost / "outcome.json").unlink()
    write_text(base / f"lab/lab/{lost}-train.log", "== python\nstep 1\nerror: step 2: the loss is nan\n")
    nothing = spec.tag_of(next(run for run in spec.runs if (run.mix, run.seed) == ("same", 1)))
    leave(base, "base_loss", nothing, metrics={"val bpb": {"value": float("nan")}})
    results = findings.read_results(spec, spec.runs)
    broken = {spec.tag_of(one.run): one.broken for one in results if one.broken}
    assert broken == {lost: "error: step 2: the loss is nan", nothing: "its bits per byte are nan"}
    gains = findings.gains_of(spec, results)
    # Seeds 1 and 3 are left of the first pair, seed 3 of the second, which shows nothing.
    assert gains["default", "better", "bpb"].freedom == 1
    assert gains["default", "better", "bpb"].mean == pytest.approx(-0.05, abs=0.005)
    assert (gains["default", "same", "bpb"].freedom, gains["default", "same", "bpb"].p) == (0, 1.0)
    reasons = {one.mix: one.reason for one in findings.verdicts_on(spec, results)}
    assert reasons["better"].endswith("; 1 of 3 runs of plain broke")
    assert reasons["same"].endswith("; 1 of 3 runs broke; 1 of 3 runs of plain broke")
    findings.write_report(spec, begin(spec), results, [])
    left_out = read_json(base / "lab/lab/left_out.json")
    assert {name: one["reason"] for name, one in left_out.items()} == {
        f"base_eval/{tag}": reason for tag, reason in broken.items()
    }
    tables = {table["title"]: table["rows"] for table in read_json(base / "lab/lab/outcome.json")["tables"]}
    assert [row[:2] for row in tables["Scores, default"]] == [
        ["plain", "2 of 3"],
        ["better", "3 of 3"],
        ["same", "2 of 3"],
    ]
    assert [row[:3] for row in tables["Alarms"]] == [[lost, "failed", "yes"], [nothing, "failed", "yes"]]


def test_rates_are_searched_by_bits_per_byte(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest loss is at a third of the rates; runs are made here."""
    spec = read_lab(base)

    def train_all(part: Spec, chains: list, config: Config) -> None:
        for run in part.runs:
            path = leave(base, "base_train", part.tag_of(run))
            bits = 2 + (np.log10(3 * run.rate)) ** 2 + 0.001 * run.seed
            write_jsonl(path.with_name("metrics.jsonl"), [{"kind": "validation", "step": 4, "val/bpb": bits}])

    monkeypatch.setattr("tracks.lab.kinds.start", train_all)
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda spec, runs: None)
    search_rates(spec, begin(spec), Config())
    [rates] = read_json(base / "lab/lab/outcome.json")["tables"]
    assert rates["title"].endswith("by the last validation bits per byte")
    assert [0.3 < row[2] < 0.37 for row in rates["rows"] if row[-1]] == [True, True, True]


def test_a_plan_names_what_pairs_can_show(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracks.lab.sweep.disk_needed", lambda spec, runs: 0)
    lines = expectations(read_lab(base, ("seeds = [1, 2, 3]", "seeds = [1]")), {}, len)
    assert "bpb: smallest difference that can be shown: none, it needs two seeds" in lines
    [line] = [one for one in expectations(read_lab(base), {}, len) if one.startswith("bpb")]
    assert line.endswith("times the deviation of a difference between seeds, which is measured")


# ---- real runs ----


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, quick: str) -> BaseLab:
    changes = {
        "seeds = [1, 2, 3]": "seeds = [1, 2]",
        "--no-compile": "--no-compile --eval-every=-1",
        "same = ": "broken = ",
        "--weight-decay=0": "--embedding-lr=1e38",
    }
    return BaseLab(tmp_path_factory.mktemp("lab"), quick, changes)


def test_the_plan_has_hours_before_the_first_run(lab: BaseLab, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = lab.lab("--plan")
    assert code == 0, text
    assert "0 of 6 runs are finished" in text
    assert "of training, one run after the other, as --dry-run estimates; evaluations are not included" in text
    assert "world_people: 6 questions" in text  # five are examples, so four are not enough
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(lab.folder))
    monkeypatch.setattr("sys.executable", lab.python)  # which plans at once
    spec = read_spec(lab.spec)
    assert planned_training(spec, spec.runs) > planned_training(spec, spec.runs[:1]) > 0
    # Weights in fp32 and the optimizer's state of each model.
    assert disk_needed(spec, spec.runs) > 6 * 2 * 4 * 300 * 32


def test_a_lab_of_base_models(lab: BaseLab) -> None:
    code, text = lab.lab()
    assert code == 0, text
    record = read_json(lab.folder / "lab/lab/outcome.json")
    tables = {table["title"]: table["rows"] for table in record["tables"]}
    assert record["metrics"]["Runs"] == "6, 2 of them left out"
    rows = {row[0]: row for row in tables["Scores, default"]}
    assert [rows[mix][1] for mix in ("plain", "better", "broken")] == ["2 of 2", "2 of 2", "0 of 2"]
    assert "the loss is" in rows["broken"][2]
    bits = {
        (mix, seed): read_json(lab.folder / f"base_loss/lab-default-{mix}-1-{seed}/outcome.json")["metrics"]["val bpb"]
        for mix in ("plain", "better")
        for seed in (1, 2)
    }
    [difference] = tables["Differences from the reference, bits per byte"]
    by_seed = [bits["better", seed]["value"] - bits["plain", seed]["value"] for seed in (1, 2)]
    assert difference[3:5] == pytest.approx([np.mean(by_seed), abs(by_seed[0] - by_seed[1]) / 2])
    # The loss that a run prints is that of its own evaluation; the broken one is tried again, the others are finished.
    code, again = lab.lab()
    assert (code, again.count("already finished")) == (0, 4 * 3), again


def test_held_out_tasks_of_base_models(lab: BaseLab) -> None:
    code, text = lab.lab("--final")
    assert code == 0, text
    assert "Scores, held out, look 1" in text
    tags = {path.name for path in lab.folder.glob("base_eval/*-held-out")}
    assert tags == {f"lab-default-plain-1-{seed}-held-out" for seed in (1, 2)}


def test_a_mistake_in_a_mix_is_said_before_anything_runs(lab: BaseLab) -> None:
    lab.spec.with_name("wrong.toml").write_text(lab.spec.read_text().replace("--window-pattern=L", "--windows=L"))
    code, text = lab.lab(f"--spec={lab.spec.with_name('wrong.toml')}")
    assert (code, "flags, sampling or methods: unknown argument --windows" in text) == (2, True), text


def test_folders_of_text_are_found_from_elsewhere(base: Path) -> None:
    with pytest.raises(UserError, match="is not a folder with"):
        read_lab(base, text="no/such/folder").flags_of("plain")
