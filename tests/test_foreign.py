"""Flags of other programs: each has a hint in some script, and whatever a hint names is there."""

import importlib
import re
from dataclasses import fields
from importlib.util import find_spec

import pytest
from conftest import ROOT

from nanochat.config import flag_of, parse
from nanochat.errors import UserError
from nanochat.foreign import ROWS, SHORT, VALUES, Hint, has_flags, hint_for
from nanochat.models import IDLE, config_fields
from nanochat.paths import read_json

SEEDS = ROOT.parent / "shared/seeds"
SCRIPTS = [f"scripts.{path.stem}" for path in sorted((ROOT / "scripts").glob("[a-z]*.py"))]
NAMES = [name for row in ROWS for name in row.names]


def flags_of(module: str) -> set[str]:
    return {flag_of(one.name) for one in fields(importlib.import_module(module).Config)}


def is_here(module: str) -> bool:
    """False for the command of a track that is not here."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# Commands elsewhere with flags that have hints of their own.
OTHERS = [module for module in ("nanochat.report.__main__", "tracks.export.export") if is_here(module)]
KNOWN = {module: flags_of(module) for module in SCRIPTS + OTHERS}
# script, foreign flag, hint; wherever a script has no such flag, and a hint for it
FOUND = [
    (module, name, hint)
    for module in KNOWN
    for name in NAMES
    if name not in KNOWN[module] and (hint := hint_for(name, KNOWN[module]))
]


def test_whatever_a_hint_names_is_there() -> None:
    for module, name, hint in FOUND:
        owner = hint.where or module
        assert set(re.findall(r"python -m ([\w.]+)", hint.text)) == ({hint.where} - {""}), name
        if is_here(owner):
            known = KNOWN.get(owner) or flags_of(owner)
            assert has_flags(hint, known), f"{module} {name}: {hint.text}"
        for value in re.findall(r"--model=(\S+?)(?:,? |$)", hint.text):
            field = value.rpartition(",")[2].partition("=")[0]
            assert field in IDLE or field in config_fields(value.removesuffix(","))
        for path in re.findall(r"nanochat/\w+\.py", hint.text):
            assert (ROOT / path).exists()


def test_every_hint_is_reached_and_no_name_is_there_twice() -> None:
    assert len(NAMES) == len(set(NAMES))
    reached = {hint for _, _, hint in FOUND}
    assert [hint for row in ROWS for hint in row.hints if hint not in reached] == []
    assert {name for _, name, _ in FOUND} == set(NAMES)
    for short, flag in SHORT.items():
        assert any(flag in known and hint_for(short, known) == Hint(f"use {flag}") for known in KNOWN.values())


def test_values_of_other_programs() -> None:
    train = importlib.import_module("scripts.base_train").Config
    for name, values in VALUES.items():
        for value, hint in values.items():
            with pytest.raises(UserError, match=re.escape(f"{flag_of(name)}={value} is not known: {hint}")):
                parse(train, [f"{flag_of(name)}={value}"])
            for flag in Hint(hint).flags:
                assert flag in KNOWN["scripts.base_train"]
            for word in re.findall(r"--\S+=\S+", hint):
                parse(train, [word])


SENTENCES = """
base_train --n_embd=1024 → unknown argument --n_embd: use --width, or leave it to --depth
base_train --n_layer 12 → unknown argument --n_layer: use --depth
base_train --gradient_accumulation_steps=4 → unknown argument --gradient_accumulation_steps: use --total-batch-size
chat_rl --gradient-accumulation-steps=4 → unknown argument --gradient-accumulation-steps: use --examples-per-step
base_train --sequence_length=4096 → unknown argument --sequence_length: use --max-seq-len
base_train --learning_rate=6e-4 → unknown argument --learning_rate: use --matrix-lr, --embedding-lr, --unembedding-lr
chat_sft --learning_rate=6e-4 → unknown argument --learning_rate: use --init-lr-frac for all rates, or
base_train --max_iters=5 → unknown argument --max_iters: use --num-iterations
base_train --model_tag=d12 → unknown argument --model_tag: use --tag
base_train --num_gpus=8 → unknown argument --num_gpus: there is no flag for it, torchrun starts one process per GPU
base_train --report_to=trackio → unknown argument --report_to: use --run=NAME, and --tracker=wandb or trackio
chat_eval --run-name=mine → unknown argument --run-name: use --run=NAME, and --tracker=wandb or trackio
base_train --wandb=mine → unknown argument --wandb: use --run, the name of the run in W&B
base_train --output_dir=x → unknown argument --output_dir: set NANOCHAT_BASE_DIR for the folder of all runs, and --tag
base_train --dtype=fp8 → --dtype=fp8 is not known: --fp8 of python -m scripts.base_train adds products in 8 bits
chat_eval -x 30 → unknown argument -x: use --max-problems
base_train --dept=4 → unknown argument --dept, did you mean --depth?
"""


@pytest.mark.parametrize("case", SENTENCES.strip().splitlines())
def test_the_sentence_that_a_user_reads(case, here) -> None:
    command, sentence = case.split(" → ")
    script, *words = command.split()
    said = here(f"scripts.{script}", *words, code=2).stderr
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


def test_what_a_command_writes_is_named_by_its_own_flag() -> None:
    for module in OTHERS:
        hint = hint_for("--output-dir", KNOWN[module])
        assert hint is not None
        assert hint.text.startswith("use --out, or set NANOCHAT_BASE_DIR")


def test_only_a_script_with_a_device_chooses_its_batch() -> None:
    """tok_train has neither a batch nor a device."""
    assert hint_for("--batch-size", KNOWN["scripts.tok_train"]) is None
    chosen = Hint("there is no flag for it, the script chooses by memory and --device-type")
    found = {module for module, name, hint in FOUND if name == "--batch-size" and hint == chosen}
    assert found
    assert all("--device-type" in KNOWN[module] for module in found)


def check(script: str, flag: str) -> None:
    """A flag either works, or its error says what does the same."""
    known = KNOWN[script]
    assert flag.replace("_", "-") in known or hint_for(flag, known), f"{script} {flag}"


# Settings on the card of the public nanochat that are no flags of ours under another name: figures of the run.
NOT_FLAGS = {"dry_run", "timestamp"}
SECTIONS = {
    "Tokenizer training": "tok_train",
    "Base model training": "base_train",
    "Midtraining": "mid_train",
    "Chat SFT": "chat_sft",
    "Chat RL": "chat_rl",
    "Chat evaluation sft": "chat_eval",
}
OF_TOKENIZER = {"train_time", "num_special_tokens", "token_bytes_min", "token_bytes_max", "token_bytes_mean"}
OF_TOKENIZER |= {"token_bytes_std"}


def test_every_setting_on_the_card_of_the_public_nanochat_works_or_has_a_hint() -> None:
    for section, script in SECTIONS.items():
        for name in read_json(ROOT / "tests/golden/card.json")[section]:
            if re.fullmatch(r"[a-z][a-z_]*", name) and name not in NOT_FLAGS | OF_TOKENIZER:
                check(f"scripts.{script}", f"--{name}")


# Flags of its training scripts in 2026 that ours do not have under the same name, and some that both have.
PUBLIC = {
    "base_train": "run fp8 fp8-recipe depth aspect-ratio target-flops device-batch-size total-batch-size scalar-lr"
    " warmup-steps resume-from-step eval-every eval-tokens core-metric-every sample-every save-every model-tag",
    "chat_sft": "model-tag model-step load-optimizer num-iterations init-lr-frac warmup-ratio eval-tokens"
    " chatcore-every chatcore-max-cat chatcore-max-sample mmlu-epochs gsm8k-epochs",
    "chat_rl": "run source device-batch-size examples-per-step num-samples top-k num-epochs save-every eval-examples",
    "chat_eval": "source task-name temperature max-new-tokens num-samples top-k batch-size model-tag step max-problems",
}


@pytest.mark.parametrize("script", PUBLIC)
def test_every_flag_of_the_public_nanochat_works_or_has_a_hint(script) -> None:
    for name in PUBLIC[script].split():
        check(f"scripts.{script}", f"--{name}")


def test_every_flag_in_the_guides_of_forks_works_or_has_a_hint() -> None:
    if not SEEDS.exists():
        pytest.skip("the guides are not here")
    found = {
        flag for path in SEEDS.glob("*.txt") for flag in re.findall(r"--([a-z]\w+)", path.read_text(errors="replace"))
    }
    assert {"n_embd", "gradient_accumulation_steps", "sequence_length", "dtype"} <= found
    for flag in found:
        check("scripts.base_train", f"--{flag}")
