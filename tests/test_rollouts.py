"""Rollouts against plain twins; the engine is real where its samples matter, else answers are made up."""

import math
import random
import re
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from loop_parts import ALONE, train
from made_chats import chat
from models import CONFIGS, lively

from nanochat import engine as engine_module
from nanochat import schedules
from nanochat.chat import render_conversation
from nanochat.engine import Completion, Engine
from nanochat.log import format_value
from nanochat.param_groups import build_groups, group_rates
from nanochat.rollouts import (
    ADVANTAGES,
    PolicyGradient,
    Replay,
    Rollouts,
    answer_row,
    reinforcement_metrics,
    replay_row,
    row_tokens,
)
from nanochat.settings import OptimizerSettings
from nanochat.tokenizer import Tokenizer
from nanochat.train import State

TOKENIZER = Tokenizer.train(["The number of letters is here to be seen, 12 + 34 = 46. " * 3], 300)
DECODING = {"max_new_tokens": 8, "temperature": 0.7, "top_k": 50}


class Words:
    """Questions with a number each; `reward` is what a test wants."""

    def __init__(self, size: int = 20, reward=lambda text: float("e" in text)) -> None:
        self.size, self.earned = size, reward

    def __len__(self):
        return self.size

    def __getitem__(self, number: int):
        return chat(f"the number {number}" + " is here" * (number % 5), "46")

    def reward(self, conversation: dict, completion: str):
        return self.earned(completion)


class MadeUp:
    """Stands where the engine does: answers of random tokens, some of them forced, some stopped."""

    def __init__(self, seed: int = 0) -> None:
        self.random, self.config, self.seen = random.Random(seed), lively(CONFIGS["reference"]).config, []

    def update_weights(self) -> None:
        pass

    def generate(self, requests):
        assert all(request.logprobs for request in requests)
        self.seen = requests
        self.answers = [[made_up(self.random) for _ in range(request.n)] for request in requests]
        return self.answers


def made_up(source: random.Random):
    size, reason = source.randint(1, 8), source.choice(["stop", "length"])
    size -= reason == "stop"
    tokens, mask = [source.randrange(200) for _ in range(size)], [source.randrange(2) for _ in range(size)]
    logprobs = [-m * source.random() for m in mask] + [-0.5] * (reason == "stop")
    return Completion(tokens, mask, reason, logprobs, source.choice(TOKENIZER.turn_ends) if reason == "stop" else None)


def real_engine(depth: int = 2, **fields):
    fields = CONFIGS["reference"] | {"vocab_size": 300, "depth": depth, "max_seq_len": 256} | fields
    model = lively(fields | {"bos_id": TOKENIZER.special_tokens["<|bos|>"]})
    return model, Engine(model, TOKENIZER)


def trainer_of(runtime, usual: dict, options: dict):
    config = SimpleNamespace(**{"seed": 0, "examples_per_step": 4} | usual | options)
    return SimpleNamespace(config=config, runtime=runtime, tokenizer=TOKENIZER)


def rollouts(engine, task=None, runtime=ALONE, record=lambda *_, **__: None, replay=None, **options):
    usual = {"max_seq_len": 256, "advantage": "mean", "epochs": 1.0, "num_samples": 4, "top_p": 1.0}
    usual |= {"init_lr_frac": 0.015}
    trainer = trainer_of(runtime, DECODING | usual, options)
    return Rollouts(trainer, task or Words(), engine, record, replay=replay)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_advantages_compare_within_a_group_alone(kind, seed) -> None:
    rewards = torch.rand(50, 6, generator=torch.Generator().manual_seed(seed))
    found = ADVANTAGES[kind](rewards)
    assert found.sum(1).abs().max() < 1e-5
    assert (found.argsort(1) == rewards.argsort(1)).all()
    mixed = torch.cat([rewards[:1], rewards[1:] * 7 + 3])
    assert torch.equal(ADVANTAGES[kind](mixed)[0], found[0])
    factor = {"mean": 7.0, "std": 1.0}[kind]  # of what all rewards are multiplied by
    assert torch.allclose(ADVANTAGES[kind](rewards * 7 + 3), found * factor, atol=1e-4)


def test_a_batch_has_the_answers_of_groups_that_differ(seed) -> None:
    """test_objectives.py computes a loss from such columns, and from plain rows."""
    records, engine = [], MadeUp(seed)
    source = rollouts(
        engine, Words(reward=len), examples_per_step=8, record=lambda kind, step, **record: records.append(record)
    )
    batch = next(source)
    expected, taught = [], []
    for number, (group, record, request) in enumerate(zip(engine.answers, records, engine.seen, strict=True)):
        rewards = [len(TOKENIZER.decode(answer.tokens)) for answer in group]
        assert [sample["reward"] for sample in record["samples"]] == rewards
        taught.append(len(set(rewards)) > 1)
        for answer, reward in zip(group if taught[-1] else [], rewards, strict=False):
            expected.append((number, answer_row(request.tokens, answer, reward - sum(rewards) / len(rewards))))
    # Answers to one prompt stand together, the longest prompt first.
    longest = {number: max(row_tokens(row) for one, row in expected if one == number) for number, _ in expected}
    expected.sort(key=lambda numbered: -longest[numbered[0]])
    fillers = {"inputs": 0, "targets": -1, "advantages": 0.0, "logprobs": 0.0, "prompt": 0}
    for row, (number, parts) in enumerate(expected):
        assert batch.answer_lengths[row] == len(parts.inputs)
        assert batch.prompt_lengths[row] == len(parts.prompt)
        assert batch.groups[row] == number
        for name, part in parts._asdict().items():
            column = batch.prompts if name == "prompt" else getattr(batch, name)
            assert torch.allclose(column[row, : len(part)], part)
            assert (column[row, len(part) :] == fillers[name]).all()
    assert {len(column) for column in batch} == {len(expected)}
    assert source.metrics["rl/groups_that_teach"] == sum(taught) / 8
    assert source.metrics["rl/reward"] == pytest.approx(
        sum(sample["reward"] for record in records for sample in record["samples"]) / 32
    )


@pytest.mark.parametrize("reward", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("kind", ADVANTAGES)
def test_groups_that_earned_the_same_are_left_out(kind, reward) -> None:
    """Also where the mean of equal numbers is, by rounding, another number."""
    source = rollouts(MadeUp(), Words(reward=lambda text: reward), num_samples=3, advantage=kind)
    batch = next(source)
    assert len(batch.inputs) == 1
    assert (batch.targets == -1).all()
    assert source.metrics["rl/groups_that_teach"] == 0
    assert source.idle
    assert source.computed(batch, 1) == 0


def test_at_a_rate_of_0_answers_are_sampled_alone() -> None:
    records = []

    def source_at(rate: float) -> Rollouts:
        return rollouts(
            MadeUp(), Words(reward=len), record=lambda *_, **record: records.append(record), init_lr_frac=rate
        )

    learning, sampling = source_at(0.015), source_at(0.0)
    assert len(next(learning).inputs) > 1
    assert len(next(sampling).inputs) == 1
    assert (learning.idle, sampling.idle) == (False, True)
    assert sampling.computed(next(sampling), 1) == 0
    assert records[:4] == records[4:8]  # the same answers, rewards and advantages


def replay_of(count: int, rows: int, weight: float = 1.0):
    """Conversations with a number each, of which the last is too long for a context of 256."""
    chats = [chat(f"{number}?", f"the number {number} is here", "and?", "seen") for number in range(count - 1)]
    chats.append(chat("is here " * 300, "46"))
    return Replay(chats, rows, weight)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_a_step_replays_conversations_beside_the_answers(weight) -> None:
    """The loop divides by the tokens of answers: then a replayed token has the weight over the number of such."""
    replay = replay_of(9, rows=5, weight=weight)
    with_answers = next(rollouts(MadeUp(1), Words(reward=len)))
    source = rollouts(MadeUp(1), Words(reward=len), replay=replay)
    batch = next(source)
    is_replayed = batch.groups < 0
    drawn = [replay.chats[number] for number in replay.draw(0, 0)]
    kept = [one for one in drawn if one is not replay.chats[-1]]
    rows = [replay_row(*render_conversation(one, TOKENIZER)) for one in kept]
    assert int(is_replayed.sum()) == len(rows)
    assert int((~is_replayed).sum()) == len(with_answers.groups)
    answers = int((with_answers.targets >= 0).sum())
    conversations = sum(int((row.targets >= 0).sum()) for row in rows)
    found = [
        tuple(map(tuple, (batch.prompts[n, :before].tolist(), batch.inputs[n, :behind].tolist())))
        for n, before, behind in zip(
            is_replayed.nonzero()[:, 0].tolist(),
            batch.prompt_lengths[is_replayed].tolist(),
            batch.answer_lengths[is_replayed].tolist(),
            strict=True,
        )
    ]
    assert sorted(found) == sorted((tuple(row.prompt.tolist()), tuple(row.inputs.tolist())) for row in rows)
    # A group's prompt is computed once; padding is no token.
    prompts = {int(group): int(length) for group, length in zip(batch.groups, batch.prompt_lengths, strict=True)}
    assert source.computed(batch, 1) == int(batch.answer_lengths.sum()) + sum(prompts.values())
    weights = batch.advantages[is_replayed][batch.targets[is_replayed] >= 0]
    assert len(weights) == conversations
    assert torch.allclose(weights / answers, torch.tensor(weight / conversations))
    assert (batch.advantages[is_replayed][batch.targets[is_replayed] < 0] == 0).all()


def test_a_conversation_with_nothing_to_learn_is_not_replayed() -> None:
    """All its answers are marked so, or the marked one is all that fits."""
    marked = chat("the number 1 is here", "seen")
    marked["messages"][1]["train"] = False
    replay = Replay([chat("0?", "46"), marked], rows=2, weight=1.0)
    for batch in islice(rollouts(MadeUp(1), Words(reward=len), replay=replay), 3):
        assert int((batch.groups < 0).sum()) == 1


def test_ranks_share_the_conversations_of_a_step_and_their_weight() -> None:
    """Two ranks in turn: what each would gather from the other is given to it."""
    replay = replay_of(30, rows=6)
    whole = next(rollouts(MadeUp(), Words(reward=len), replay=replay))
    counted: list[list[int]] = []
    for given in (None, counted):  # at first only to count
        halves = []
        for rank in (0, 1):

            def all_gather(own, rank=rank, given=given):
                if not (isinstance(own, list) and len(own) == 2 and isinstance(own[0], int)):
                    return [own, own]  # records of samples
                if given is None:
                    counted.append(own)
                    return [own, own]
                return list(given)

            runtime = SimpleNamespace(rank=rank, world_size=2, device=ALONE.device, all_gather=all_gather)
            halves.append(next(rollouts(MadeUp(), Words(reward=len), runtime=runtime, replay=replay)))
    numbers = sorted(int(number) for half in halves for number in half.groups if number < 0)
    assert numbers == sorted(int(number) for number in whole.groups if number < 0)
    sums = [float(half.advantages[half.groups < 0].sum()) for half in halves]
    # All weights of a step together are those of the tokens of answers, on both ranks.
    assert sum(sums) == pytest.approx(sum(answers for answers, _ in counted), rel=1e-5)
    with pytest.raises(ValueError, match=r"6 replayed conversations of a step cannot be shared by 4 ranks"):
        rollouts(MadeUp(), runtime=replace(ALONE, world_size=4), replay=replay)


def test_a_pass_replays_every_conversation_once() -> None:
    replay = replay_of(10, rows=4)
    drawn = [replay.draw(3, step) for step in range(5)]
    together = [number for numbers in drawn for number in numbers]
    assert sorted(together[:10]) == sorted(together[10:]) == [*range(10)]
    assert together[:10] != together[10:]
    assert replay.draw(4, 0) != drawn[0]
    assert drawn == [replay.draw(3, step) for step in range(5)]  # a resumed run draws the same


def test_logprobs_are_the_models(monkeypatch) -> None:
    """Of what it chose, to stop too; 0 for what the calculator said."""
    monkeypatch.setattr(engine_module, "calculate", lambda expression: "42")
    model, engine = real_engine()
    prompt = TOKENIZER.encode("here is the number")
    request = engine_module.Request(prompt, 60, temperature=1.5, top_k=100, n=64, seed=1)
    [answers] = engine.generate([replace(request, logprobs=True)])
    assert {answer.reason for answer in answers} == {"stop", "length"}
    assert sum(answer.mask.count(0) for answer in answers) > 0
    assert {answer.end for answer in answers} == {None, *TOKENIZER.turn_ends}
    for answer in answers:
        assert (answer.end is None) == (answer.reason == "length")
        ids = [*prompt, *answer.tokens, *([] if answer.end is None else [answer.end])]
        with torch.no_grad():
            plain = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        expected = [float(plain[i - 1, ids[i]]) for i in range(len(prompt), len(ids))]
        mask = [*answer.mask, 1][: len(expected)]
        assert answer.logprobs == pytest.approx([m * one for m, one in zip(mask, expected, strict=True)], abs=1e-4)
    expected = [replace(answer, logprobs=[0.0] * len(answer.logprobs)) for answer in answers]
    assert engine.generate([request]) == [expected]


def test_an_epoch_asks_everything_once_in_an_order_of_its_own() -> None:
    source = rollouts(MadeUp(), Words(22), epochs=2)
    assert source.steps == 10
    found = [(source.draw(), next(source), [request.seed for request in source.engine.seen]) for _ in range(10)]
    first, second = ([number for numbers, *_ in half for number in numbers] for half in (found[:5], found[5:]))
    assert len(set(first)) == len(set(second)) == 20
    assert len({seed for *_, seeds in found for seed in seeds}) == 40
    assert first != second
    assert source.progress == 1
    assert rollouts(MadeUp(), Words(22), seed=1).draw() != first[:4]
    for options, sentence in [
        ({"examples_per_step": 21}, "--examples-per-step=21 is more than the 20 examples to learn from"),
        ({"runtime": replace(ALONE, world_size=3)}, "4 examples per step cannot be shared by 3 ranks"),
    ]:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            rollouts(MadeUp(), **options)


def test_the_reward_has_a_moving_average() -> None:
    source, state = rollouts(MadeUp()), State(step=1)
    for reward in (0.04, 0.3):
        source.metrics = {"rl/reward": reward, "rl/cut": 0.0}
        source.follow(state)
    metrics = reinforcement_metrics(state, "GSM8K", 7)
    assert metrics["Reward, a moving average"] == pytest.approx(0.9 * 0.04 + 0.1 * 0.3)


@pytest.mark.parametrize(("cut", "warned"), [(0.04, False), (0.3, True)])
def test_answers_that_are_cut_are_on_the_card_and_warned_about(capsys, cut, warned) -> None:
    source, state = rollouts(MadeUp()), State(step=1)
    source.metrics = {"rl/reward": 0.5, "rl/cut": cut}
    source.follow(state)
    assert (f"{cut:.0%} of the latest answers are cut at --max-new-tokens=8" in capsys.readouterr().out) is warned
    assert format_value(reinforcement_metrics(state, "GSM8K", 7)["Answers cut at the limit"]) == f"{cut:.1%}"
    source.metrics["rl/cut"] = 0.0
    source.follow(state)  # the card is about the whole run
    assert format_value(reinforcement_metrics(state, "GSM8K", 7)["Answers cut at the limit"]) == f"{cut / 2:.1%}"
    assert reinforcement_metrics(State(), "GSM8K", 7)["Answers cut at the limit"] == "n/a"


def test_prompt_and_answer_fit_into_a_row() -> None:
    engine = MadeUp()
    lengths = {}
    for most in (8, 30):
        next(rollouts(engine, max_seq_len=40, max_new_tokens=most, examples_per_step=20))
        lengths[most] = [(len(request.tokens), request.max_new_tokens) for request in engine.seen]
    assert all(limit == 8 for _, limit in lengths[8])  # there is room
    assert min(limit for _, limit in lengths[30]) < 30  # what is left of the row
    assert all(prompt <= 40 - most or prompt <= 20 for most, found in lengths.items() for prompt, _ in found)
    assert all(prompt + limit <= 40 for found in lengths.values() for prompt, limit in found)


def test_it_learns_what_is_rewarded(tmp_path) -> None:
    """To say a certain letter: a few dozen steps are enough."""
    model, engine = real_engine(depth=1)
    model.init_weights(1)
    options = {"epochs": 10, "temperature": 1.0, "top_k": 0, "max_new_tokens": 6}
    source = rollouts(engine, Words(8, reward=lambda text: float("m" in text)), num_samples=8, **options)
    narrow = (model.config.width / 768) ** 0.5  # undoes the scaling by width
    rates = OptimizerSettings(unembedding_lr=0.02 * narrow, embedding_lr=0.1 * narrow, scalar_lr=0.05, matrix_lr=0.02)
    constant = schedules.pretraining(OptimizerSettings(warmup_steps=0, warmdown_ratio=0.0, final_lr_frac=0.0))
    groups = build_groups(model, group_rates(rates, model.config.width, 1.0, 0.0))
    settings = {"schedules": constant, "groups": groups, "device_batch": 16, "steps": 24}
    records = train(tmp_path, model=model, source=source, objective=PolicyGradient(), **settings).records
    rewards = [record["rl/reward"] for record in records]
    print(rewards)
    assert sum(rewards[:3]) / 3 < 0.4
    assert sum(rewards[-3:]) / 3 > 0.9
    assert max(record.get("rl/logprob_gap", 0.0) for record in records) < 1e-5
    assert math.isfinite(records[-1]["train/loss"])
