"""Preferences by hand and against plain rows; pairs in files, from samples, and as a source of batches."""

import json
import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chat_files import write_lines
from conftest import each_row
from engines import ids_of
from loop_parts import ALONE
from models import CONFIGS, lively
from test_objectives import TwoWords, in_parts
from test_rollouts import TOKENIZER, MadeUp, Words, rollouts, trainer_of

from nanochat.chat import render_conversation, render_prompt
from nanochat.engine import Completion
from nanochat.errors import TemplateError, UserError
from nanochat.protocols import Conversation
from nanochat.tokenizer import Tokenizer
from tracks.preferences.pairs import (
    PREFERENCE_LOSSES,
    PairBatch,
    Pairs,
    Preference,
    as_pair,
    make_pairs,
    pair_rows,
    read_pairs,
)

CALLS = [{"type": "python", "text": "12+34"}, {"type": "python_output", "text": "46"}, {"type": "text", "text": " 46"}]


class Scripted(MadeUp):
    """Stands where the engine does: gives these (text, reason) as answers; special tokens are spelled in the text."""

    def __init__(self, answers: list[tuple[str, str]]) -> None:
        super().__init__()
        self.answers = answers

    def generate(self, requests) -> list[list[Completion]]:
        return [[self.completion(*answer) for answer in self.answers] for _ in requests]

    def completion(self, text: str, reason: str) -> Completion:
        tokens = ids_of(text, TOKENIZER)
        end = TOKENIZER.turn_end if reason == "stop" else None
        return Completion(tokens, [1] * len(tokens), reason, [0.0] * (len(tokens) + (reason == "stop")), end)


def a_pair(number: int, chosen: str | list[dict] = "The letter is e.") -> dict[str, Any]:
    prompt = f"the number {number // 2}" + " is here" * (number // 2 % 5)  # two pairs a prompt
    return {"prompt": prompt, "chosen": chosen, "rejected": f"12 {number}"}


def source_of(records, runtime=ALONE, **options) -> Pairs:
    trainer = trainer_of(runtime, {"max_seq_len": 100, "epochs": 2.0, "held_out": 0.1}, options)
    manifest = {"files": {"model.safetensors": {"sha256": "of the parent"}}}
    trainer.start, trainer.resumed = SimpleNamespace(weights=SimpleNamespace(manifest=manifest)), None
    return Pairs(trainer, [as_pair(record) for record in records])


FAULTS = """
{"prompt": "a", "chosen": "b"} | a pair has prompt, chosen and rejected, and rejected is missing
{"prompt": "a", "chosen": "b", "rejected": "b"} | chosen and rejected are equal
{"prompt": "a", "chosen": "b", "rejected": 3} | message 2: its content is neither a string nor a list
{"prompt": [{"role": "robot", "content": "a"}], "chosen": "b", "rejected": "c"} | message 1: its role is 'robot', and
{"prompt": 3, "chosen": "b", "rejected": "c"} | what the user says is neither a text nor a list of messages: 3
{"chosen": "b", "rejected": "c"} | a pair has prompt, chosen and rejected, and prompt is missing
{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "a"}]} | chosen and rejected
{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]} | a pair has prompt
{"prompt": "a", "chosen": [{"role": "assistant", "content": "b", "weight": 0}], "rejected": "c"} | chosen and
{"prompt": "a", "chosen": "b", "rejected": "c", "chat_template_kwargs": {"x": 1}} | its chat_template_kwargs are not
{ | Expecting property name
"""


@each_row("line fault", FAULTS)
def test_a_faulty_pair_is_named(line, fault, tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{json.dumps(a_pair(1))}\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: {fault}")):
        read_pairs(str(path))


ORDERS = """
[]                                                                        | message 1: its role is 'assistant' where
[{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]      | message 2: its role is 'tool' where
"""


@each_row("prompt fault", ORDERS)
def test_a_pair_in_an_order_that_only_a_public_template_may_take_is_named(prompt, fault, base) -> None:
    asked = {"prompt": prompt if isinstance(prompt, list) else json.loads(prompt), "chosen": "b", "rejected": "c"}
    with pytest.raises(ValueError, match=re.escape(f"pair 2 of --pairs: {fault}")):
        source_of([a_pair(1), asked])


class Merging:
    """Stands where a public template does: an answer's line break is one token with that of its prompt."""

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        answer = conversation["messages"][-1]["content"]
        if answer.startswith("\n"):
            return [1, 10, 2, 4, 5, 9], [0, 0, 0, 1, 1, 1]
        return [1, 10, 2, 3, 6, 9], [0, 0, 0, 0, 1, 1]

    def render_prompt(self, conversation: Conversation) -> list[int]:
        return [1, 10, 2, 3]


@pytest.mark.parametrize("swapped", [False, True])
def test_both_answers_are_behind_one_prompt(swapped: bool) -> None:
    sides = ["No", "\nSure"] if swapped else ["\nSure", "No"]
    pair = as_pair({"prompt": "a", "chosen": sides[0], "rejected": sides[1]})
    tokenizer: Any = SimpleNamespace(template=Merging())
    rows = dict(zip(sides, pair_rows(1, pair, tokenizer), strict=True))
    assert [row.prompt.tolist() for row in rows.values()] == [[1, 10]] * 2
    assert (rows["\nSure"].inputs.tolist(), rows["\nSure"].targets.tolist()) == ([2, 4, 5], [4, 5, 9])
    assert (rows["No"].inputs.tolist(), rows["No"].targets.tolist()) == ([2, 3, 6], [-1, 6, 9])


def test_pairs_of_other_programs() -> None:
    """Answers as lists of messages, with the prompt beside them, in them, or both."""
    before = [{"role": "system", "content": "S"}, {"role": "user", "content": "How many?"}]
    sides = {name: [{"role": "assistant", "content": text}] for name, text in (("chosen", "46"), ("rejected", "47"))}
    whole = {name: [*before, *answer] for name, answer in sides.items()}
    texts = {name: answer[0]["content"] for name, answer in sides.items()}
    expected = as_pair({"prompt": before, **texts})
    assert (
        as_pair({"prompt": before, **sides}) == as_pair(whole) == as_pair({"prompt": "How many?", **whole}) == expected
    )
    assert as_pair({"prompt": "How many?", **sides}) == as_pair({"prompt": "How many?", **texts})
    with pytest.raises(ValueError, match="chosen and rejected differ before their last message"):
        as_pair({**whole, "rejected": whole["rejected"][1:]})


def test_samples_become_pairs_that_render_to_their_tokens(here, base, tmp_path) -> None:
    chat = [{"role": "user", "content": "the number"}, {"role": "assistant", "content": [*CALLS, *CALLS]}]
    asked = {"messages": [*chat, {"role": "user", "content": "letters?\n"}, {"role": "assistant", "content": "46"}]}
    call = "<|python_start|>12+34<|python_end|>"
    right = call + "<|output_start|>46<|output_end|> 46"
    rewards = {right: 1.0, "46": 0.0, call[:-3]: 0.0, "46<|bos|>": 0.0, "": 0.0, "12": 0.5, "7": 1.0, "4": 0.0}
    answers = [(text, "length" if text == "4" else "stop") for text in (*rewards, "46")]
    records = []

    def keep(kind: str, step: int, **one) -> None:
        records.append({"kind": kind, "step": step, **one})

    class Asked(Words):
        def __getitem__(self, number: int) -> dict[str, Any]:
            return asked

    options = {"examples_per_step": 1, "num_samples": len(answers), "record": keep}
    next(rollouts(Scripted(answers), Asked(1, rewards.get), **options))
    pairs = make_pairs(records, 5)
    assert [pair["chosen"] for pair in pairs] == [CALLS, [{"type": "text", "text": "7"}]]
    assert [pair["rejected"][0]["text"] for pair in pairs] == ["46", "12"]
    write_lines(base / "chat_rl/d12/samples.jsonl", *records)
    out = tmp_path / "pairs.jsonl"
    assert here("scripts.rollouts", f"--pairs={out}").stdout == f"{out}: 1 pairs\n"
    assert read_pairs(str(out)) == [as_pair(pairs[0])]
    chosen, rejected = as_pair(pairs[0])
    assert render_prompt(chosen, TOKENIZER) == render_prompt(rejected, TOKENIZER) == render_prompt(asked, TOKENIZER)
    decoded = TOKENIZER.decode(render_conversation(chosen, TOKENIZER)[0])
    assert decoded == f"{records[0]['prompt']}{right}<|assistant_end|>"
    few = [records[0] | {"samples": records[0]["samples"][:1]}]
    with pytest.raises(ValueError, match="no prompt has a better and a worse answer"):
        make_pairs(few, 1)


def test_the_source_on_any_ranks() -> None:
    records = [a_pair(number) for number in range(30)]
    source, other = source_of(records), source_of(random.Random(1).sample(records, 30))
    columns = [[column.tolist() for pair in one.answers for row in pair for column in row] for one in (source, other)]
    assert columns[0] == columns[1]  # the order in the file does not matter
    # A tenth would be three; the pair beside the border has the prompt of the first of them.
    assert (source.count, len(source.held_out), source.steps) == (26, 4, 12)
    prompts = [chosen.prompt.tolist() for chosen, _ in source.answers]
    assert not any(prompt in prompts[:26] for prompt in prompts[26:])
    numbers = [next(source).groups.tolist() for _ in range(2)]
    assert all(row[::2] == row[1::2] and max(row) < 26 for row in numbers)  # two rows a pair, none held out
    ranks = [source_of(records, replace(ALONE, rank=rank, world_size=2)) for rank in (0, 1)]
    for rank in ranks:
        rank.load_state_dict({"step": 1})
    assert sorted(number for rank in ranks for number in next(rank).groups.tolist()) == sorted(numbers[1])
    assert sorted([*ranks[0].held_out, *ranks[1].held_out]) == [*source.held_out]
    assert source_of([*records, a_pair(1, "fox " * 90)]).left_out == 1
    sentence = r"30 of 30 pairs are longer than --max-seq-len=8, and 0 are left .* fewer than --examples-per-step=4"
    with pytest.raises(UserError, match=sentence):
        source_of(records, max_seq_len=8)


class Choosy:
    """A template that takes no question with the word cat."""

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        if "cat" in conversation["messages"][0]["content"]:
            raise TemplateError("the chat template refuses the conversation: no cats")
        return render_conversation(conversation, TOKENIZER)

    def render_prompt(self, conversation: Conversation) -> list[int]:
        return render_prompt(conversation, TOKENIZER)


def test_a_template_may_refuse_a_few_pairs(monkeypatch, capsys) -> None:
    choosy = Tokenizer(TOKENIZER.core)
    choosy.template = Choosy()
    monkeypatch.setattr("test_rollouts.TOKENIZER", choosy)  # of trainer_of
    bad = a_pair(1) | {"prompt": "the cat"}
    source = source_of([*(a_pair(number) for number in range(99)), bad])
    assert (source.refused, len(source.answers)) == (1, 99)
    assert (
        "data: 1 of 100 pairs are left out; pair 100 of --pairs: the chat template refuses" in capsys.readouterr().out
    )
    sentence = (
        r"pair 100 of --pairs: the chat template refuses the conversation: no cats \(2 of 101 pairs are refused\)"
    )
    with pytest.raises(UserError, match=sentence):
        source_of([*(a_pair(number) for number in range(99)), bad, bad])


@pytest.mark.parametrize("loss", PREFERENCE_LOSSES)
def test_a_model_against_plain_rows_and_in_parts(loss, base) -> None:
    """Each answer behind its own copy of the prompt, and no kept log-probabilities."""
    shape = CONFIGS["reference"] | {"vocab_size": 300, "max_seq_len": 128, "bos_id": TOKENIZER.bos, "depth": 2}
    parent, model = lively(shape), lively(shape, seed=7)
    records = [a_pair(number, [*CALLS, *CALLS] if number % 3 else "e") for number in range(9)]
    source, again = (source_of(records, held_out=0.0, examples_per_step=8) for _ in range(2))
    source.set_reference(lambda: parent, 2)
    again.set_reference(lambda: pytest.fail("the file has them"), 4)
    batch, total = next(source), 0.0
    assert all(torch.equal(one, other) for one, other in zip(batch, next(again), strict=True))
    for number in batch.groups[::2].tolist():
        gains = []
        for row in source.answers[number]:
            kept, ids = row.targets >= 0, torch.cat([row.prompt, row.inputs])[None]
            logprobs = [one(ids)[0, len(row.prompt) :].log_softmax(-1) for one in (model, parent)]
            own, before = (one.gather(1, row.targets.clamp(min=0)[:, None])[:, 0][kept] for one in logprobs)
            gains.append((own - before.detach()).sum() / (kept.sum() if loss == "dpo-norm" else 1))
        total = total - torch.log(torch.sigmoid(0.1 * (gains[0] - gains[1])))
    total.backward()
    for summed, count in in_parts(model, Preference(loss), source.split, batch, {16: 1, 3: 3, 1: 8}):
        assert (summed, count) == (pytest.approx(total.item(), abs=1e-4), 8)


def test_the_gradient_by_hand() -> None:
    """Word 1 (3/4) twice was chosen, word 0 (1/4) rejected; the parent gave 1/2 to each word.

    The margin is 2 ln 3/2 - ln 1/2 = ln 4.5. With beta 1/2 the loss is ln(1 + 1/sqrt 4.5); its slope by the margin is
    -beta / (1 + sqrt 4.5). The margin's slope by logit 1 is 2 (1 - 3/4) - (0 - 3/4) = 5/4.
    """
    targets, half, root = torch.tensor([[1, 1], [0, -1]]), math.log(0.5), 4.5**0.5
    inputs = torch.zeros_like(targets)
    batch = PairBatch(
        inputs=inputs,
        targets=targets,
        reference=torch.tensor([[half, half], [half, 0.0]]),
        prompts=inputs[:, :1],
        answer_lengths=torch.tensor([2, 1]),
        prompt_lengths=torch.tensor([1, 1]),
        groups=torch.tensor([0, 0]),
    )
    for weight, value, slope in [
        # The mean loss on the chosen words is ln 4/3, and its slope 3/4 - 1.
        (0.1, math.log(1 + 1 / root) + 0.1 * math.log(4 / 3), -0.5 * 1.25 / (1 + root) - 0.1 * 0.25),
        (0.0, math.log(1 + 1 / root), -0.5 * 1.25 / (1 + root)),
    ]:
        model = TwoWords()
        found, count, metrics = Preference("dpo", 0.5, weight)(model, batch)
        found.backward()
        assert (found.item(), int(count)) == (pytest.approx(value), 1)
        assert model.logits.grad.tolist() == pytest.approx([-slope, slope])
    figures = {name: metric.total.item() for name, metric in metrics.items()}
    kl = (2 * (1.5 * math.log(1.5) - 0.5) + (0.5 * math.log(0.5) + 0.5)) / 3
    expected = {"dpo/loss": value, "dpo/accuracy": 1, "dpo/gained": 1, "dpo/margin": math.log(4.5), "dpo/kl": kl}
    assert figures == pytest.approx(expected)
