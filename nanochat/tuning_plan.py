"""The dry run of fine-tuning: parent, rows, steps and rates, then memory, time and price as for base training.

The parent's manifest is enough. Rows are counted where tokenizer and data sets are at hand; otherwise one sentence says
what is missing, and what is assumed instead.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from nanochat.chat import render_conversation
from nanochat.checkpoint import Checkpoint
from nanochat.cost import Work, device_of, print_estimate
from nanochat.data.hub import HubError
from nanochat.errors import TemplateError, UserError
from nanochat.log import print0
from nanochat.models import config_of, described, new_model, tokenizer_of
from nanochat.param_groups import group_rates, parameter_counts, state_bytes
from nanochat.protocols import Conversations
from nanochat.runtime import VALIDATION_BYTES, planned_hardware
from nanochat.scaling import RunPlan, flops_per_token, rate_scale, require_multiple
from nanochat.settings import AnswerTuneSettings, ChatTuneSettings, FineTuneSettings, given
from nanochat.stages import MODELS
from nanochat.start import inherit
from nanochat.timing import SLOTS, UNCOMPILED, Pause

SAMPLED = 200  # conversations that are tokenized to estimate the length of all
# Assumed where nothing is counted: tokens of a prompt, of a problem that a letter answers, the problems where all of a
# task are asked for, and the most tokens of a written answer (the default of scripts.chat_eval).
PROMPT_TOKENS = 100
LETTER_TOKENS = 150
ALL_PROBLEMS = 1000
WRITTEN_TOKENS = 512

OpenRows = Callable[[str], Conversations]  # from the tag of a tokenizer to what a run learns from
Settings = TypeVar("Settings", bound=FineTuneSettings)


@dataclass(frozen=True)
class Answers:
    """What a step learns from: some answers to each prompt."""

    each: int  # to a prompt
    longest: int = 0  # tokens that may be sampled for an answer; 0: the answers are given
    worth: float = 1.0  # FLOPs of a step relative to training on its answers: above 1 with a frozen reference
    frozen: bool = False  # the reference stays in memory
    tests: int = 0  # answers to test prompts in an evaluation


@dataclass(frozen=True)
class _Rows:
    """The rows that a run learns from."""

    count: int | None  # None: not counted
    tokens: float  # of a row, on average; 0: not counted
    answered: float  # share of its tokens that the assistant writes; 0: not counted
    missing: str  # the reason, if they are not counted


def print_chat_plan(
    config: ChatTuneSettings,
    open_rows: OpenRows,
    usual_tokens: float,
    kinds: Callable[[str], Sequence[str]],
    supervise: str = "assistant",
) -> None:
    """Print the plan of training on conversations.

    usual_tokens: in the stage's own mixture with all of its data sets. kinds: from the tag of a tokenizer to the kinds
    of the tasks that are scored. supervise: as in packing.ChatLoader.
    """
    with _only_json_on_stdout(config):
        parent, config, rows = _begin(config, open_rows)
        batch = given(config.total_batch_size)
        notes = _notes(config, parent, rows)
        steps = None
        if config.target_supervised_tokens != -1:
            share = 1.0 if supervise == "all" else rows.answered
            if share:
                steps = math.ceil(config.target_supervised_tokens / share / batch)
        elif rows.count is not None:
            steps = int(config.epochs * rows.count * rows.tokens / batch)
        elif not config.mixture:
            steps = int(config.epochs * usual_tokens / batch)
            notes.append(f"Tokens: about {usual_tokens / 1e6:,.0f} M in a pass, assumed: those of the public data sets")
        ranks, accelerator = planned_hardware(config.on)
        tokens = config.eval_tokens if config.eval_tokens > 0 else VALIDATION_BYTES[device_of(accelerator)] // 4
        scored = kinds(parent.manifest["tokenizer"]["tag"])
        letters = scored.count("categorical")
        problems = config.eval_metrics_max_problems or ALL_PROBLEMS
        pauses = [
            Pause("validation", config.eval_every, at_start=True, scored=tokens),
            Pause(
                "task scores",
                config.eval_metrics_every if scored else -1,
                scored=letters * problems * LETTER_TOKENS,
                speed=UNCOMPILED,
                rows=(len(scored) - letters) * problems / ranks,
                length=WRITTEN_TOKENS,
            ),
        ]
        plan = _plan(config, parent, batch, steps, notes)
    print_estimate(plan, config, ranks, accelerator, Work(pauses))


def print_answer_plan(
    config: AnswerTuneSettings, open_rows: OpenRows, answers: Answers, usual_rows: int | None = None
) -> None:
    """Print the plan of training on answers to prompts. usual_rows: prompts where none can be counted."""
    with _only_json_on_stdout(config):
        parent, config, rows = _begin(config, open_rows)
        ranks, accelerator = planned_hardware(config.on)
        prompts = config.examples_per_step
        in_step = prompts * answers.each
        require_multiple("examples per step", prompts, ranks)
        notes = _notes(config, parent, rows)
        count = rows.count
        if count is None and usual_rows:
            count = usual_rows
            notes.append(f"Prompts: {count:,} in a pass, assumed: those of the public data set")
        longest = min(answers.longest, given(config.max_seq_len)) or given(config.max_seq_len)
        tokens = rows.tokens or min(given(config.max_seq_len), PROMPT_TOKENS + longest / 2)
        limit = f", sampled up to {longest:,} tokens each" if answers.longest else ""
        source = "as in the data" if rows.tokens else "assumed"
        notes.append(f"A step: {prompts} prompts, {in_step} answers{limit}")
        notes.append(f"Tokens of a prompt with its answer: about {tokens:.0f}, {source}")
        steps = None if count is None else int(config.epochs * count // prompts)
        # Rows of a whole context decide about memory alone.
        batch = in_step * given(config.max_seq_len)
        config = replace(config, total_batch_size=batch)
        plan = _plan(config, parent, batch, steps, notes)
        sampled = in_step / ranks if answers.longest else 0.0
        tests = Pause("test scores", config.eval_every, at_start=True, rows=answers.tests / ranks, length=longest)
        if not answers.longest:  # given answers are scored in one forward
            tests = replace(tests, scored=answers.tests * tokens, speed=UNCOMPILED, rows=0, length=0)
        memory = {}
        if answers.frozen:
            memory["frozen parent"] = 4.0 * plan.counts["total"]
        if sampled:
            memory |= _sampling_memory(plan, min(sampled, SLOTS[device_of(accelerator)]), PROMPT_TOKENS + longest)
        work = Work([tests], in_step * tokens * answers.worth, sampled, longest, memory)
    print_estimate(plan, config, ranks, accelerator, work)


def _begin(config: Settings, open_rows: OpenRows) -> tuple[Checkpoint, Settings, _Rows]:
    """Return the parent, with its manifest alone, the settings with the values of the parent, and the rows."""
    parent = described(MODELS[config.source], config.model_tag or config.tag)
    config = inherit(config, parent.manifest)
    return parent, config, _count(parent, open_rows, given(config.max_seq_len))


def _count(parent: Checkpoint, open_rows: OpenRows, length: int) -> _Rows:
    """Return the rows, as long as a row of `length` tokens lets them be."""
    try:
        tokenizer = tokenizer_of(parent)
    except UserError as error:
        return _Rows(None, 0.0, 0.0, str(error))
    try:
        rows = open_rows(parent.manifest["tokenizer"]["tag"])
    except HubError as error:
        return _Rows(None, 0.0, 0.0, str(error))
    sample = []
    answered = 0
    for number in range(min(SAMPLED, len(rows))):
        with suppress(TemplateError):  # the loader leaves it out
            ids, learned = render_conversation(rows[number], tokenizer)
            sample.append(len(ids))
            answered += sum(learned)
    if not sample:
        return _Rows(None, 0.0, 0.0, "the chat template refuses the conversations")
    # A longer conversation is shortened, or left out.
    return _Rows(len(rows), fmean(min(count, length) for count in sample), answered / sum(sample), "")


def _notes(config: FineTuneSettings, parent: Checkpoint, rows: _Rows) -> list[str]:
    """Return the first lines of a plan."""
    tag = config.model_tag or config.tag
    counted = f"{rows.count:,}" if rows.count is not None else f"not counted: {rows.missing}"
    return [f"Parent: {MODELS[config.source]} {tag}, step {parent.step:,}", f"Training rows: {counted}"]


def _plan(config: FineTuneSettings, parent: Checkpoint, batch: int, steps: int | None, notes: list[str]) -> RunPlan:
    """Return the plan. batch: tokens of a step in whole rows. steps: in all passes, None if they are not known."""
    length = given(config.max_seq_len)
    model = new_model(replace(config_of(parent.manifest), max_seq_len=length))
    if config.num_iterations != -1:
        steps = config.num_iterations
    seconds = None if config.target_seconds == -1 else config.target_seconds
    until = (
        "not known: the data cannot be counted here, and --num-iterations is not given"
        if steps is None
        else f"about {max(steps, 1):,}"
    )
    if seconds is not None:
        steps = None
        until = f"as many as {seconds:g} seconds allow"
    notes.append(f"Steps: {until}")
    notes.append(
        f"Learning rates: x {given(config.init_lr_frac):g} at the start, x {config.final_lr_frac:g} of that at the end"
    )
    if not config.json:
        print0(*notes, sep="\n")
    return RunPlan(
        model=model.config,
        counts=parameter_counts(model),
        state_bytes=state_bytes(model),
        flops_per_token=flops_per_token(model, length),
        total_batch_size=batch,
        rates=group_rates(
            config, model.config.width, rate_scale(batch), config.weight_decay, given(config.init_lr_frac)
        ),
        steps=None if steps is None else max(steps, 1),
        seconds=seconds,
        notes=notes,
    )


def _sampling_memory(plan: RunPlan, rows: float, length: int) -> dict[str, float]:
    """Return a rank's bytes for answers side by side, in 16 bits: a packed copy of the weights, keys and values."""
    model = plan.model
    return {
        "weights for sampling": 2.0 * plan.counts["total"],
        "keys and values": 2.0 * 2 * rows * min(length, model.max_seq_len) * model.depth * model.kv_width,
    }


@contextmanager
def _only_json_on_stdout(config: FineTuneSettings) -> Iterator[None]:
    """Send what is printed to stderr if a program reads the plan."""
    if not config.json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield
