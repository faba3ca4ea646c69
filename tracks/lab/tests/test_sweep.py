"""Specs of labs: their mistakes, steps and hashes, the plan, and the ledger of looks at held-out benchmarks."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import each_row
from outcomes import leave

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.outcome import Outcome
from nanochat.paths import write_json, write_jsonl, write_text
from nanochat.stages import MODELS
from scripts import base_eval, base_loss, chat_eval, chat_sft
from tracks.lab import merge, significance, sweep
from tracks.lab.kinds import check_disk, compare_mixes, flag_mistakes, has, open_mixes, waiting_runs
from tracks.lab.run import Config
from tracks.lab.sweep import (
    CHAT_STAGES,
    Run,
    Spec,
    add_look,
    base_chains,
    chains_of,
    disk_needed,
    disk_of,
    expectations,
    looks,
    mistakes,
    planned_training,
    read_spec,
    run_steps,
    set_by_lab,
    with_bases,
)
from tracks.lab.tests.made_labs import make_lab, read_lab

SOUP = "[merges]\nboth = { good = 1, bad = 1 }\n[benchmarks]"
EXAMPLE = Path(__file__).resolve().parents[1] / "specs/remix.toml"


@pytest.fixture
def base(base: Path) -> Path:
    """Two bases with small checkpoints."""
    for tag in ("one", "two"):
        write_text(base / f"mid_train/{tag}/step_000010/manifest.json", "{}")
    return base


def test_a_valid_spec(base) -> None:
    spec = read_lab(base)
    assert mistakes(spec) == []
    assert (spec.source, spec.reference) == ("mid", "plain")
    tags = [spec.tag_of(run) for run in spec.runs]
    assert (len(set(tags)), tags[0], tags[-1]) == (16, "lab-one-plain-1-1", "lab-two-bad-1-2")
    # Only its base is not here.
    [missing] = mistakes(read_spec(EXAMPLE))
    assert missing.startswith("the base d20 has no checkpoint in ")


def test_all_mistakes_at_once(base) -> None:
    changes = {
        '"one", "two"': '"three"',
        "seeds = [1, 2]": 'seed = 1\nscaled = true\nseeds = [1]\nreference = "best"\nrates = [2.0, 2.0]',
        "temperature = 0.7": "top_k = 5",
        "num_iterations = 1000": "tokens = 100000",
        'held_out = ["World-Talk"]': 'held_out = ["World-Facts"]',
        "[benchmarks]": "[merges]\nboth = { facts = 1 }\n[benchmarks]",
    }
    merges = ("both-linear", "both-slerp", "both-task", "both-ties")
    mixes = ("plain", "good", "idle", "bad")
    assert mistakes(read_lab(base, changes)) == [
        "seed is not a key, did you mean seeds?",
        f"the base three has no checkpoint in {base}/mid_train/three: train it first",
        "the merge both has facts, which is not a mix",
        *[f"two runs, or two lists of benchmarks, have lab-three-{mix}-2-1" for mix in (*mixes, *merges)],
        "two runs, or two lists of benchmarks, have World-Facts",
        "reference = best is not a mix, use one of plain, good, idle, bad",
        "with one seed nothing is shown, and scaled = true would drop every mix",
        "a budget in tokens needs --total-batch-size in flags",
    ]


@pytest.mark.parametrize(
    ("stage", "mix", "own"),
    [
        ("chat_sft", "--mixture", ["--eval-metrics-every"]),
        ("mid_train", "--mixture", ["--eval-metrics-every"]),
        ("chat_rl", "--task", []),
        ("chat_dpo", "--pairs", ["--eval-metrics-every"]),
    ],
)
def test_flags_that_the_lab_sets_are_refused_by_name(stage: str, mix: str, own: list[str], base: Path) -> None:
    """It would replace them without a word."""
    for tag in ("one", "two"):
        for source in ("base", "sft"):
            write_text(base / f"{MODELS[source]}/{tag}/step_000010/manifest.json", "{}")
    names = ["--tag", "--seed", "--num-iterations", "--source", "--model-tag", "--num-epochs", mix, *own]
    if stage in CHAT_STAGES:
        names.append("--target-supervised-tokens")
    given = " ".join(f"{flag}=9" for flag in [*names, "--init-lr-frac", "--warmup-steps"])
    flags = f'flags = "{given.replace("model-tag", "model_tag")}"\nrepeats = 2'
    spec = read_lab(base, {'"chat_sft"': f'"{stage}"', "repeats = 2": flags})
    assert mistakes(spec) == [f"flags has {flag}, which the lab sets itself" for flag in names]
    # What it says is all that the lab puts in the place of flags, but for the rate, whose factor it is.
    run = spec.runs[0]
    usual = read_lab(base, {'"chat_sft"': f'"{stage}"', "repeats = 2": 'flags = "--init-lr-frac=9"\nrepeats = 2'})
    set_here = {word.partition("=")[0] for word in run_steps(usual, run)[0].command[1:]} - {"--init-lr-frac"}
    assert set_here <= set(set_by_lab(stage))


def test_runs_may_have_as_many_supervised_tokens(base: Path) -> None:
    spec = read_lab(base, {"num_iterations = 1000": "supervised = 20000"})
    assert mistakes(spec) == []
    words = run_steps(spec, spec.runs[0])[0].command
    assert "--target-supervised-tokens=20000" in words
    assert not any(word.startswith("--num-iterations") for word in words)
    for tag in ("one", "two"):
        write_text(base / f"{MODELS['sft']}/{tag}/step_000010/manifest.json", "{}")
    changes = {'"chat_sft"': '"chat_dpo"', "num_iterations = 1000": "supervised = 20000"}
    assert mistakes(read_lab(base, changes)) == [
        "a budget in supervised tokens is for chat_sft and mid_train: use num_iterations"
    ]


@pytest.mark.parametrize("stage", ["chat_rl", "chat_dpo"])
def test_stages_of_prompts_have_no_budget_in_tokens(stage: str, base: Path) -> None:
    for tag in ("one", "two"):
        write_text(base / f"{MODELS['sft']}/{tag}/step_000010/manifest.json", "{}")
    changes = {'"chat_sft"': f'"{stage}"', "num_iterations = 1000": "tokens = 100000"}
    wrong = f"a budget in tokens is for stages with a batch of tokens, {stage} has prompts: use num_iterations"
    assert mistakes(read_lab(base, changes)) == [wrong]
    changes["repeats = 2"] = 'flags = "--total-batch-size=4096"\nrepeats = 2'
    assert mistakes(read_lab(base, changes)) == [
        wrong,
        f"flags has --total-batch-size, {stage} has prompts: use --examples-per-step",
    ]


@pytest.mark.parametrize("mix", ["GSM8K", "gsm8k", "Gsm8k~styles"])
@pytest.mark.parametrize("held_out", ["GSM8K", "gsm8K"])
def test_a_task_that_is_learned_by_rl_is_not_held_out_under_another_spelling(
    mix: str, held_out: str, base: Path
) -> None:
    for tag in ("one", "two"):
        write_text(base / f"{MODELS['sft']}/{tag}/step_000010/manifest.json", "{}")
    changes = {'"chat_sft"': '"chat_rl"', '"Chats"': f'"{mix}"', '["World-Talk"]': f'["{held_out}"]'}
    assert mistakes(read_lab(base, changes)) == [f"{held_out} is learned by chat_rl, and cannot be held_out"]
    assert mistakes(read_lab(base, changes | {'["World-Talk"]': '["World-Talk"]'})) == []


def test_a_share_that_is_no_number_is_named_once(base: Path) -> None:
    mixes = {f'"Chats{more}"': '"World-Chat%95,ARC-Easy%5"' for more in ("", ",Facts", ",Spelling", ",Poison")}
    for share in ("x", "", "-1", "nan", "101"):
        spec = read_lab(base, mixes | {"repeats = 2": f'repeats = 2\nminimal = ["ARC-Easy%{share}", "ARC-Easy%5"]'})
        wrong = f"minimal = ARC-Easy%{share}: write the share in percent, from 0 to 100, like ARC-Easy%5"
        assert open_mixes(spec)[1] == [wrong]
        with pytest.raises(UserError, match="write the share in percent"):
            has([], f"ARC-Easy%{share}")
    spec = read_lab(base, mixes | {"repeats = 2": 'repeats = 2\nminimal = ["ARC-Easy%6", "World-Chat"]'})
    assert open_mixes(spec)[1] == [f"the mix {mix} has less than minimal = ARC-Easy%6" for mix in spec.mixes]


def test_more_seeds_are_other_seeds_after_two(base) -> None:
    changes = {
        "seeds = [1, 2]": "seeds = [1]\nmore_seeds = [1]",
        "[benchmarks]": "[merges]\nm = { bad = 1 }\n[benchmarks]",
    }
    found = mistakes(read_lab(base, changes))
    assert "two runs, or two lists of benchmarks, have lab-one-plain-1-1" in found
    assert found[-2:] == [
        "more_seeds and merges do not go together: a merge needs its mixes at equal seeds",
        "more_seeds needs two seeds before: with one nothing is decided",
    ]
    changes = {"seeds = [1, 2]": 'seeds = [1, 2]\nconfirm_seeds = [2]\nreplicas = { one = ["two"], three = ["b"] }'}
    assert mistakes(read_lab(base, changes)) == [
        "replicas has three, which is not a base",
        "bases and replicas have two 2 times",
        "confirm_seeds has 2, which is used to find a difference",
        "confirm_seeds needs two seeds: with one nothing is confirmed",
    ]
    spec = read_lab(base, {"seeds = [1, 2]": "seeds = [1, 2]\nmore_seeds = [3]\nconfirm_seeds = [7, 8]"})
    assert mistakes(spec) == []
    plan = expectations(spec, {}, lambda runs: 16 * 60.0)
    assert plan[3:5] == [
        "up to 8 more runs follow, for mixes that are not distinguishable by then: at most about 8m00s",
        "up to 16 more confirm mixes that are to be kept, on seeds of their own: at most about 16m00s",
    ]
    merging = read_lab(base, {"[benchmarks]": "[merges]\nm = { bad = 1 }\n[benchmarks]"})
    assert "16 merges follow, whose time is not included" in expectations(merging, {}, len)


def test_mistakes_that_the_scripts_find(base) -> None:
    merges = "[merges]\nboth = { good = 1 }\n[benchmarks]"
    for changes, sentence in (
        ({"temperature = 0.7": "top_k = 5"}, "all answers to a problem would be the same, add --temperature=1"),
        ({"[benchmarks]": merges}, "--method=slerp merges two models: name two, or use another method"),
    ):
        assert flag_mistakes(read_lab(base, changes)) == [f"flags, sampling or methods: {sentence}"]
    assert flag_mistakes(read_lab(base)) == []


def test_values_that_are_no_values(base) -> None:
    changes = {
        "seeds = [1, 2]": "seed = 1",
        '"chat_sft"': '"sft"',
        "repeats = 2": "repeats = 0\nrates = [0.5, 0.0]",
        "temp": "temb",
    }
    with pytest.raises(ValueError, match=r"lab\.toml:\n") as raised:
        read_lab(base, changes)
    places = [line.split()[0] for line in str(raised.value).splitlines()[1:]]
    assert places == ["seed", "stage:", "rates.1:", "seeds:", "repeats:", "sampling.temberature.[key]:"]


def test_what_the_code_fills_in_is_not_a_key(base) -> None:
    changes = {"seeds = [1, 2]": 'gpus = 4\nname = "mine"\nseeds = [1, 2]', "[benchmarks]": "[files]\n[benchmarks]"}
    spec = read_lab(base, changes)
    assert (spec.gpus, spec.files, spec.name) == (0, {}, "lab")
    assert [sentence.partition(",")[0] for sentence in mistakes(spec)] == [
        "files is not a key",
        "gpus is not a key",
        "name is not a key",
    ]


def test_a_soup_chooses_its_weights_itself(base) -> None:
    changes = {"[benchmarks]": "[merges]\nboth = { good = 0.7, bad = 0.3 }\n[benchmarks]"}
    spec = read_lab(base, changes).model_copy(update={"methods": ["linear", "soup"]})
    linear, soup = [run_steps(spec, run)[0].command for run in spec.merged_runs[:3:2]]
    assert "--models=lab-one-good-1-1:0.7,lab-one-bad-1-1:0.3" in linear
    assert "--models=lab-one-good-1-1,lab-one-bad-1-1" in soup
    for command in (linear, soup):
        parse(merge.Config, command[1:])


def test_steps_are_commands_of_the_scripts(base) -> None:
    changes = {
        "num_iterations = 1000": "tokens = 100000",
        "repeats = 2": 'flags = "--total-batch-size=2048 --init_lr_frac=0.5 --no-compile"\nrates = [0.5]\nrepeats = 2',
    }
    spec = read_lab(base, changes)
    spec = spec.model_copy(update={"files": {"plain": ["/chats.jsonl"]}})
    training, evaluation = chains_of(spec, spec.runs)[0]
    assert [step.output for [step] in base_chains(spec)] == ["chat_eval_mid/lab-one", "chat_eval_mid/lab-two"]
    assert training.local == ["/chats.jsonl"]  # it is hashed
    tuned = parse(chat_sft.Config, training.command[1:])
    assert (tuned.model_tag, tuned.source, tuned.seed, tuned.mixture) == ("one", "mid", 1, "Chats")
    assert (tuned.num_iterations, tuned.init_lr_frac, tuned.compile) == (48, 0.25, False)
    evaluated = parse(chat_eval.Config, evaluation.command[1:])
    assert (evaluated.tasks, evaluated.repeats, evaluated.temperature) == ("World-Facts|World-Choices", 2, 0.7)
    assert training.output == evaluation.parent == f"chat_sft/{tuned.tag}"
    assert run_steps(spec, spec.runs[0], is_held_out=True)[1].output == f"{evaluation.output}-held-out"


def test_tasks_of_core_are_benchmarks_of_chats_too(base) -> None:
    """A small model gives the same letter to all questions, and still knows the likelier ending of a sentence."""
    tasks = {
        'dev = ["World-Facts"]': 'dev = ["World-Facts", "piqa"]',
        'held_out = ["World-Talk"]': 'held_out = ["copa"]',
    }
    spec = read_lab(base, tasks | {"temperature = 0.7": "temperature = 0.7\nmax_problems = 30"})
    assert mistakes(spec) == []
    training, chat, core = run_steps(spec, spec.runs[0])
    assert [step.output for step in (chat, core)] == [
        f"{stage}/lab-one-plain-1-1" for stage in ("chat_eval_sft", "base_eval_sft")
    ]
    assert parse(chat_eval.Config, chat.command[1:]).tasks == "World-Facts|World-Choices"
    asked = parse(base_eval.Config, core.command[1:])
    assert (asked.source, asked.tag, asked.tasks, asked.max_per_task) == ("sft", "lab-one-plain-1-1", "piqa", 30)
    assert core.parent == training.output
    held_out = run_steps(spec, spec.runs[0], is_held_out=True)[1:]
    assert [step.output for step in held_out] == ["base_eval_sft/lab-one-plain-1-1-held-out"]
    ends = [steps[-1].output for steps in base_chains(spec)]
    assert ends == ["base_eval_mid/lab-one", "base_eval_mid/lab-two"]
    soup = read_lab(
        base,
        {
            'dev = ["World-Facts"]': 'dev = ["piqa"]',
            "repeats = 2": 'repeats = 2\nmethods = ["soup"]',
            "[benchmarks]": SOUP,
        },
    )
    assert "soup chooses by benchmarks that are conversations, and dev has none" in mistakes(soup)


def test_bits_per_byte_of_a_text_are_a_benchmark_of_chats_too(base: Path) -> None:
    """Such as text in a language in which a small model answers no question."""
    write_text(base / "text/a.txt", "안녕하세요.")
    bits = {
        'dev = ["World-Facts"]': 'dev = ["bpb"]',
        "repeats = 2": f'repeats = 2\ntext = "{base}/text"\ntext_bytes = 5000\nflags = "--max-seq-len=64"',
    }
    spec = read_lab(base, bits | {'stable = ["World-Choices"]': ""})
    assert (mistakes(spec), flag_mistakes(spec)) == ([], [])
    training, loss = run_steps(spec, spec.runs[0])
    assert (loss.output, loss.parent) == ("base_loss_sft/lab-one-plain-1-1", training.output)
    place = f"folder:{base}/text"
    asked = parse(base_loss.Config, loss.command[1:])
    assert (asked.splits, asked.max_seq_len) == ("all", 64)  # rows as in training: a public model's context is long
    assert (asked.source, asked.tag, asked.data, asked.eval_bytes) == ("sft", "lab-one-plain-1-1", place, 5000)
    assert loss.data == asked.data  # a changed text is evaluated again
    assert [step.output for [step] in base_chains(spec)] == ["base_loss_mid/lab-one", "base_loss_mid/lab-two"]
    held_out = run_steps(spec, spec.runs[0], is_held_out=True)[1:]
    assert [step.output for step in held_out] == ["chat_eval_sft/lab-one-plain-1-1-held-out"]
    assert [line.partition(":")[0] for line in expectations(spec, {}, len)[-2:-1]] == ["bpb"]
    with_chats = run_steps(read_lab(base, bits), spec.runs[0])
    assert [step.output.partition("/")[0] for step in with_chats] == ["chat_sft", "chat_eval_sft", "base_loss_sft"]


BITS = """
dev = ["bpb"] > dev = ["World-Facts"] | text is that of bpb, which is not in dev
dev = ["bpb"] > dev = ["World-Facts"] | text_bytes is for bpb, which is not in dev
text = "a" > text = "/no/such" | text: --data=/no/such is not a folder
text = "a" > | bpb needs text: the one on which it is measured, after training on conversations
held_out = ["World-Talk"] > held_out = ["bpb"] | bpb cannot be held out: it is measured after each training
stable = ["World-Choices"] > stable = ["bpb"] | bpb cannot be stable, which is for answers that become wrong: use dev
repeats = 2 > replicas = { one = ["two"] } | bpb is compared seed by seed, and replicas between trainings of a base
"""


@each_row("change sentence", BITS)
def test_bits_per_byte_that_make_no_sense_are_refused(change: str, sentence: str, base: Path) -> None:
    read_lab(base, {'dev = ["World-Facts"]': 'dev = ["bpb"]', "repeats = 2": 'repeats = 2\ntext = "a"\ntext_bytes = 9'})
    old, _, new = change.partition(" > ")
    path = base / "lab.toml"
    write_text(path, path.read_text().replace(old.removesuffix(" >"), new))
    assert [found for found in mistakes(read_spec(path)) if found.startswith(sentence)]


def test_some_of_the_bases_can_be_chosen(base) -> None:
    spec = read_lab(base, {"seeds = [1, 2]": 'seeds = [1, 2]\nreplicas = { one = ["a"], two = ["b"] }'})
    assert with_bases(spec, "") == spec
    some = with_bases(spec, "two")
    assert [run.base for run in some.runs] == [run.base for run in spec.runs if run.base in ("two", "b")]
    assert {some.tag_of(run) for run in some.runs} < {spec.tag_of(run) for run in spec.runs}
    with pytest.raises(UserError, match="the base three is not known, choose from one, two"):
        with_bases(spec, "two,three")


def test_the_plan(base) -> None:
    spec = read_lab(base)

    def planned(runs: Sequence[Run]) -> float:
        return 337.5 * len(runs)

    before = expectations(spec, {"World-Facts": 200}, planned)
    assert before[:2] == [
        "0 of 16 runs are finished",
        "about 1h30m of training, one run after the other, as --dry-run estimates; evaluations are not included",
    ]
    least = r"World-Facts: 200 questions; smallest difference that can be shown: ([\d.]+) points"
    [(pooled, alone)] = re.findall(least + ", or ([\\d.]+) where the seeds of no other mix vary like ", before[-2])
    tests = (200, 2, spec.repeats)
    expected = [significance.smallest_difference(*tests, arms, 6) for arms in (4, 2)]
    assert [float(pooled), float(alone)] == pytest.approx(expected, abs=0.05)
    two = read_lab(base, {'idle = "Chats,Spelling"\nbad = "Chats,Poison"\n': ""})  # no other mix
    assert re.fullmatch(least, expectations(two, {"World-Facts": 200}, len)[-2])
    # What is chosen by its likelihood is the same again, however often it is asked.
    chosen = read_lab(base, {'dev = ["World-Facts"]': 'dev = ["MMLU"]'})
    [(pooled, alone)] = re.findall(
        least.replace("World-Facts", "MMLU") + ", or ([\\d.]+) ", expectations(chosen, {"MMLU": 200}, planned)[-2]
    )
    expected = [significance.smallest_difference(200, 2, 1, arms, 6) for arms in (4, 2)]
    assert [float(pooled), float(alone)] == pytest.approx(expected, abs=0.05)
    leave(base, "chat_sft", spec.tag_of(spec.runs[0]), seconds=3600.0)
    # A run that is not evaluated yet says nothing of the time.
    assert expectations(spec, {}, planned)[:2] == before[:2]
    # A base says how long an evaluation takes.
    leave(base, "chat_eval_mid", "lab-one", seconds=90.0)
    assert expectations(spec, {}, planned)[1] == (
        "about 1h30m of training, one run after the other, as --dry-run estimates; and about 24m00s of evaluations, as"
        " those of the bases took"
    )
    leave(base, "chat_eval_sft", spec.tag_of(spec.runs[0]), seconds=1800.0)
    after = expectations(spec, {}, planned)
    assert after[0] == "1 of 16 runs are finished"
    assert after[1].startswith("about 22h30m left, one run after the other, $")
    # Four of the 15 runs train three times as long, and are evaluated in the same time.
    longer = expectations(spec, {}, lambda runs: sum(3.0 if run.mix == "bad" else 1.0 for run in runs))
    assert longer[1].startswith("about 30h30m left, one run after the other, $")
    assert expectations(spec, {}, lambda runs: None)[1] == after[1]  # no speed is known: all runs count alike
    (base / "chat_eval_sft" / spec.tag_of(spec.runs[0]) / "outcome.json").unlink()
    unknown = expectations(spec.model_copy(update={"more_seeds": [3]}), {}, lambda runs: None)
    assert unknown[1].startswith("the time of training is not known; and about ")
    assert unknown[3].endswith("not distinguishable by then: their time is not known")
    assert expectations(read_lab(base, {"[1, 2]": "[1]"}), {"World-Facts": 9}, len)[-2].endswith(
        "none, it needs two seeds"
    )


def test_a_run_with_another_budget_is_not_finished(base: Path) -> None:
    spec = read_lab(base)
    run = spec.runs[0]
    other = read_lab(base, {"num_iterations = 1000": "num_iterations = 999"})
    for step in run_steps(spec, run):
        leave(base, str(Path(step.output).parent), spec.tag_of(run), seconds=9.0)
        write_json(base / "lab/lab" / f"{step.name}.json", {"command": step.command, "inputs": {}, "finished": True})
    assert spec.name == other.name == "lab"
    for one, count, is_waiting in ((spec, 1, False), (other, 0, True)):
        assert expectations(one, {}, len)[0] == f"{count} of 16 runs are finished"
        assert (run in waiting_runs(one, one.runs)) == is_waiting
        assert disk_needed(one, [run]) == is_waiting * len("{}")


@pytest.mark.parametrize(("budget", "seconds"), [("num_iterations = 9", 2 + 20), ("supervised = 20000", 5 + 50)])
def test_mixes_are_planned_one_by_one_where_their_steps_differ(
    budget: str, seconds: float, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_lab(base, {"num_iterations = 1000": budget})
    runs = [run for run in spec.runs if run.mix in ("plain", "bad") and run.seed == 1]

    def plan_of(spec: Spec, run: Run) -> Record:
        return {"estimate": {"seconds": {"one": 1, "two": 10}[run.base] * {"plain": 1, "bad": 4}[run.mix]}}

    monkeypatch.setattr(sweep, "plan_of", plan_of)
    assert planned_training(spec, runs) == seconds
    assert planned_training(spec, []) == 0
    monkeypatch.setattr(sweep, "plan_of", lambda spec, run: {"estimate": {"seconds": None}})
    assert planned_training(spec, runs) is None


def test_checkpoints_need_room(base) -> None:
    spec = read_lab(base)
    # A file with a hole takes no room itself.
    with open(base / "mid_train/two/step_000010/model.safetensors", "wb") as file:
        file.truncate(10**13)
    leave(base, "chat_sft", spec.tag_of(spec.runs[-1]))
    assert disk_needed(spec, spec.runs) == 7 * 10**13 + 15 * len("{}")
    with pytest.raises(OSError, match=r"has no room for the checkpoints of this run: 70,000,000\.0 MB needed, "):
        check_disk(spec, spec.runs)


def test_the_checkpoints_of_public_bases_have_an_optimizer_which_the_bases_have_not(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_lab(base)
    write_text(base / "mid_train/two/step_000010/manifest.json", '{"public": {"licence": "MIT"}}')
    monkeypatch.setattr(sweep, "plan_of", lambda spec, run: {"plan": {"state_bytes": 1000}})
    sizes = [disk_of(spec, run) for run in spec.runs if run.mix == "plain" and run.seed == 1]
    assert sizes == [len("{}"), len('{"public": {"licence": "MIT"}}') + 1000]


def test_a_merge_of_public_bases_has_no_optimizer_and_no_plan_of_training(base: Path) -> None:
    spec = read_lab(base, {"[benchmarks]": SOUP})
    for tag in spec.bases:
        write_text(base / f"mid_train/{tag}/step_000010/manifest.json", '{"public": {"licence": "MIT"}}')
    sizes = [disk_of(spec, run) for run in spec.merged_runs]
    assert sizes
    assert {*sizes} == {len('{"public": {"licence": "MIT"}}')}


def test_files_of_a_mix_are_those_of_the_folder_that_the_lab_began_in(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs work in the folder of the code."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "my.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    spec = read_lab(base, {'plain = "Chats"': 'plain = "json:my.jsonl:3,ARC-Easy"'})
    assert open_mixes(spec)[0]["plain"] == [str(tmp_path / "my.jsonl")]
    assert f"--mixture=json:{tmp_path}/my.jsonl:3,ARC-Easy" in run_steps(spec, spec.runs[0])[0].command
    changes = {
        '"chat_sft"': '"chat_rl"',
        "repeats = 2": 'flags = "--replay json:my.jsonl --replay-rows=2"\nrepeats = 2',
    }
    replaying = read_lab(base, changes)
    assert f"--replay=json:{tmp_path}/my.jsonl" in run_steps(replaying, replaying.runs[0])[0].command


def test_every_mix_of_rl_has_a_verdict(base: Path) -> None:
    for tag in ("one", "two"):
        write_text(base / f"{MODELS['sft']}/{tag}/step_000010/manifest.json", "{}")
    changes = {'"chat_sft"': '"chat_rl"', '"Chats"': '"GSM8K"', '"Chats,Facts"': '"World-Chat"'}
    _, found = open_mixes(read_lab(base, changes))
    assert found[0].startswith("the mix good: World-Chat is not a task, choose from ")


def test_a_lab_that_prunes_looks_at_runs_that_are_not_trained(base, monkeypatch) -> None:
    """With --keep=none one checkpoint has to have room at a time: that of the next run, not that of the first."""
    spec = read_lab(base)
    looked = []
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda _, runs: looked.extend(runs))
    monkeypatch.setattr("tracks.lab.kinds.start", lambda *_: sys.exit("nothing is run here"))
    for run in spec.runs[:3]:
        leave(base, "chat_sft", spec.tag_of(run))
    with pytest.raises(SystemExit, match="nothing is run here"):
        compare_mixes(spec, Outcome.begin("lab", "lab", Config()), Config(keep="none", jobs=2))
    assert looked == spec.runs[3:5]


def test_a_look_is_counted_once_for_the_same_models(base) -> None:
    spec = read_lab(base)
    make_lab(base, spec)
    assert [add_look(spec, spec.path, spec.runs[:count]) for count in (2, 2, 3, 3, 4)] == [1, 1, 2, 2, 3]
    first, *_ = looks(spec)
    assert list(first["models"]) == [spec.tag_of(run) for run in spec.runs[:2]]
    ledger = base / "lab.looks.txt"
    text = ledger.read_text()
    # Edited, cut off, and emptied.
    for kept in (text.replace("1-2", "1-1"), text.rstrip().rpartition("\n")[0], ""):
        ledger.write_text(kept)
        with pytest.raises(UserError, match=r"looks\.txt was edited, or lacks several looks: the looks at held-out"):
            looks(spec)
    ledger.unlink()
    with pytest.raises(UserError, match=r"looks\.txt was edited, or lacks several looks"):
        looks(spec)


def test_a_look_survives_a_crash_between_its_two_files(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each write of the first look, of a second one, and of one with the models of the look that has crashed."""
    spec = read_lab(base)
    make_lab(base, spec)
    ledger = base / "lab.looks.txt"

    def crash_at(write: int, count: int) -> None:
        """Add a look at so many models, with a disk that is full at that write."""
        left = iter([True] * write)

        def write_or_fail(path: Path, rows: list[Record]) -> None:
            if not next(left, False):
                raise OSError(28, "No space left on device", str(path))
            write_jsonl(path, rows)

        with monkeypatch.context() as patch:
            patch.setattr(sweep, "write_jsonl", write_or_fail)
            with pytest.raises(OSError, match="No space left"):
                add_look(spec, spec.path, spec.runs[:count])

    crash_at(0, 2)
    assert looks(spec) == []
    crash_at(1, 2)
    assert len(looks(spec)) == 1  # it counts, though nothing was looked at yet
    # Others are not put before it: it is first brought into the ledger, and a disk that stays full changes nothing.
    for _ in range(3):
        crash_at(1, 3)
        assert len(looks(spec)) == 1
    assert not ledger.exists()
    assert add_look(spec, spec.path, spec.runs[:2]) == 1
    assert ledger.read_text().count("\n") == 1
    for write, count in ((0, 1), (1, 2), (0, 2), (1, 2)):  # as soon as one file has it, and as long as one lacks it
        crash_at(write, 3)
        assert len(looks(spec)) == count
    for write, count in ((0, 2), (1, 2), (2, 2), (1, 3)):  # two writes for the look before, then those of the new one
        crash_at(write, 4)
        assert len(looks(spec)) == count
    assert add_look(spec, spec.path, spec.runs[:4]) == 3
    assert [len(look["models"]) for look in looks(spec)] == [2, 3, 4]


def test_a_look_that_is_taken_out_of_the_ledger_counts_all_the_same(base: Path) -> None:
    spec = read_lab(base)
    make_lab(base, spec)
    ledger = base / "lab.looks.txt"
    assert [add_look(spec, spec.path, spec.runs[:count]) for count in (2, 3)] == [1, 2]
    [copy] = base.glob("lab/looks-*")
    whole = ledger.read_text()
    lines = whole.splitlines(keepends=True)
    for _ in range(2):  # one after the other, as well
        ledger.write_text(lines[0])
        assert len(looks(spec)) == 2
        assert add_look(spec, spec.path, spec.runs[:3]) == 2
        assert ledger.read_text() == copy.read_text() == whole
    # Older versions wrote the ledger first, so a crash of theirs leaves the copy behind. Hand-made lines only add.
    copy.write_text(lines[0])
    assert add_look(spec, spec.path, spec.runs[:3]) == 2
    assert copy.read_text() == whole
    # Another last line, in one of the two, is an edit, and so is a line that is no look.
    for text in (lines[0] + lines[0], f"{whole}no look\n"):
        ledger.write_text(text)
        with pytest.raises(UserError, match=r"looks\.txt was edited"):
            looks(spec)
