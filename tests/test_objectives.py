"""What training minimises, by hand and against torch's own cross-entropy."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from models import CONFIGS, fake_flash, lively
from torch import nn

from nanochat.engine import Completion
from nanochat.gpt import GPTConfig
from nanochat.objectives import REDUCTIONS, Metric, Moment, maximum, next_token, objective_at
from nanochat.rollouts import AnswerBatch, PolicyGradient, Rollouts, answer_row, replay_row

END = 5  # of an answer


class TwoWords(nn.Module):
    """Whatever it reads, it says word 1 with a chance of 3/4 and word 0 with one of 1/4."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.config = nn.Parameter(torch.tensor([0.0, math.log(3)])), GPTConfig()

    def hidden(self, ids, cache) -> None:
        cache.update(0, ids, ids)

    def forward(self, inputs, targets, reduction, cache):
        assert reduction == "none"
        logits = self.logits.expand(*inputs.shape, 2).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="none").view_as(inputs)


def step(targets: list, advantages: list, sampled: list | None = None, groups: tuple[int, ...] = ()):
    targets, advantages = torch.tensor(targets), torch.tensor(advantages, dtype=torch.float32)
    kept = targets >= 0
    own = torch.tensor([0.25, 0.75]).log()[targets.clamp(min=0)] * kept
    sampled = own if sampled is None else torch.tensor(sampled)
    inputs = torch.zeros_like(targets)
    ones = torch.ones(len(targets), dtype=torch.int64)
    return AnswerBatch(
        inputs=inputs,
        targets=targets,
        advantages=advantages * kept,
        logprobs=sampled,
        prompts=inputs[:, :1],
        answer_lengths=targets.shape[1] * ones,
        prompt_lengths=ones,
        groups=torch.tensor(groups) if groups else 0 * ones,
    )


def gradient(objective: PolicyGradient, batch: AnswerBatch):
    model = TwoWords()
    loss, count, _ = objective(model, batch)
    loss.backward()
    return loss.item(), int(count), model.logits.grad.tolist()


def test_the_policy_gradient_by_hand() -> None:
    """Of word 1 (chance 3/4) with advantage 1/2 and word 0 (1/4) with -1/2, and one that the model did not choose.

    loss = -(ln 3/4 - ln 1/4) / 2 = -(ln 3) / 2; of a logit it is, summed over tokens, advantage x (chance - chosen).
    """
    loss, count, slopes = gradient(PolicyGradient(), step([[1, -1], [-1, 0]], [[0.5, 9.0], [9.0, -0.5]]))
    assert loss == pytest.approx(-math.log(3) / 2)
    assert count == 2
    assert slopes == pytest.approx([0.5 * 0.25 - 0.5 * (0.25 - 1), 0.5 * (0.75 - 1) - 0.5 * 0.75])


@pytest.mark.parametrize("case", "1 1 -1 1 | 1.5 1 -1.2 0 | 1.5 -1 1.5 1.5 | .5 1 -.5 .5 | .5 -1 .8 0".split(" | "))
def test_clipping_by_hand(case) -> None:
    """The ratio counts where it speaks for less change; beyond the clip nothing is learned. share: of the gradient."""
    ratio, advantage, loss, share = map(float, case.split())
    batch = step([[1]], [[advantage]], sampled=[[math.log(0.75 / ratio)]])
    found, _, slopes = gradient(PolicyGradient("clip"), batch)
    assert found == pytest.approx(loss)
    plain = gradient(PolicyGradient(), batch)[2]
    assert slopes == pytest.approx([share * slope for slope in plain], abs=1e-6)


def test_straying_costs_by_hand_and_the_gap_to_the_sampler_is_a_metric() -> None:
    """Of word 1, 3/4 now and 1/2 before: 2/3 - ln 2/3 - 1."""
    before = TwoWords().requires_grad_(False)
    batch = step([[1, -1]], [[0.0, 0.0]])
    assert gradient(PolicyGradient("plain", 1.0, before), batch)[::2] == (0.0, [0.0, 0.0])
    before.logits.zero_()
    loss, _, slopes = gradient(PolicyGradient("plain", 0.1, before), batch)
    assert loss == pytest.approx(0.1 * (2 / 3 - math.log(2 / 3) - 1))
    # Of ln p it is 1 - 2/3, and of a logit ln p is chosen - chance.
    assert slopes == pytest.approx([0.1 / 3 * (0 - 0.25), 0.1 / 3 * (1 - 0.75)])
    objective, true = PolicyGradient(), math.log(0.75)
    batch = step([[1, -1], [1, 1]], [[1.0, 1.0]] * 2, [[true + 0.25, 0], [true - 0.5, true]])
    gap = objective(TwoWords(), batch).metrics["rl/logprob_gap"]
    assert (float(gap.total), int(gap.count)) == (pytest.approx(0.75), 3)


@pytest.mark.parametrize("loss", ["plain", "clip"])
def test_what_is_replayed_is_learned_by_cross_entropy_by_hand(loss) -> None:
    """Beside word 1 with advantage 1/2: words 1 and 0 of a replayed row, with weight 2.

    It has no part in the count, in the clip, in the penalty or in the gap to the sampler.
    """
    targets, weights, sampled = [[1, -1, -1], [1, -1, 0]], [[0.5, 9.0, 9.0], [2.0, 9.0, 2.0]], [[0.0] * 3] * 2
    sampled[0] = [math.log(0.75), 0.0, 0.0]
    alone = gradient(PolicyGradient(loss), step(targets[:1], weights[:1], sampled[:1]))
    batch = step(targets, weights, sampled, groups=(3, -1))
    before = TwoWords().requires_grad_(False)
    before.logits.zero_()
    for kl in (0.0, 0.1):
        objective = PolicyGradient(loss, kl, before, replays=True)
        found, count, slopes = gradient(objective, batch)
        penalty = gradient(PolicyGradient(loss, kl, before), step(targets[:1], weights[:1], sampled[:1]))
        assert found == pytest.approx(penalty[0] - 2 * math.log(3 / 16))
        assert count == alone[1] == 1
        # Of -ln p it is chance - chosen.
        again = 2 * (0.25 + 0.25 - 1), 2 * (0.75 - 1 + 0.75)
        assert slopes == pytest.approx([slope + more for slope, more in zip(penalty[2], again, strict=True)])
        metrics = objective(TwoWords(), batch).metrics
        assert float(metrics["rl/logprob_gap"].total) == pytest.approx(0.0, abs=1e-6)
        assert metrics["rl/replay_loss"].total.item() == pytest.approx(-math.log(3 / 16))
        assert metrics["rl/replay_loss"].count == 2
    assert "rl/replay_loss" not in PolicyGradient(loss)(TwoWords(), step(targets[:1], weights[:1])).metrics


def test_a_replayed_conversation_against_a_plain_row() -> None:
    """Its loss is that of `next_token` on the whole conversation: the prompt is only computed apart."""
    model = lively(CONFIGS["reference"])
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (20,), generator=generator)
    mask = [0] * 6 + [1, 1, 1, 0, 0, 1] + [0] * 4 + [1] * 4  # two answers, the first with a result of the calculator
    targets = torch.where(torch.tensor(mask[1:]) == 1, ids[1:], -1)
    plain, count, _ = next_token(model, (ids[None, :-1], targets[None]))
    plain.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    batch = AnswerBatch.of({-1: [replay_row(ids.tolist(), mask)]}, torch.device("cpu"))
    loss = PolicyGradient(replays=True)(model, batch)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(plain.item(), abs=1e-4)
    assert (int(loss.count), int(loss.metrics["rl/replay_loss"].count)) == (0, int(count))
    for name, p in model.named_parameters():
        assert torch.allclose(expected.get(name, torch.zeros_like(p)), p.grad, atol=1e-4), name


def test_an_objective_may_depend_on_how_far_the_run_has_come() -> None:
    class Growing:
        def at(self, moment: Moment):
            def objective(model, batch):
                loss = next_token(model, batch)
                return loss._replace(total=loss.total * moment.progress + moment.step)

            return objective

    def model(inputs, targets):
        return torch.tensor(8.0)

    batch = torch.zeros(1, 3), torch.tensor([[1, -1, 2]])
    assert objective_at(next_token, Moment(3, 0.5)) is next_token
    plain, grown = (objective_at(one, Moment(3, 0.5))(model, batch) for one in (next_token, Growing()))
    assert (plain.total, plain.count, plain.metrics) == (8.0, 2, {})
    assert grown.total == 8 * 0.5 + 3


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 1.5), ("sum", 6.0), ("root mean square", math.sqrt(1.5))])
def test_sums_are_joined_and_reduced(reduction, expected) -> None:
    parts = [Metric(torch.tensor(total), torch.tensor(count), reduction) for total, count in ((4.0, 3), (2.0, 1))]
    whole = parts[0].joined(parts[1])
    assert REDUCTIONS[reduction](whole.total.item(), whole.count.item()) == pytest.approx(expected)
    assert REDUCTIONS["mean"](5.0, 0.0) == 5.0  # no target in the whole step


def test_the_largest_of_the_maxima_counts() -> None:
    whole = maximum(torch.tensor(2.0, requires_grad=True)).joined(maximum(torch.tensor(3.0))).detached()
    assert REDUCTIONS["maximum"](whole.total.item(), whole.count.item()) == 3.0
    assert not whole.total.requires_grad


def in_parts(model, objective, split, batch, cuts: dict[int, int]):
    """Compare gradients with the model's own; yield sums of loss and count. cuts: rows that fit → micro-batches."""
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for full_rows, parts in cuts.items():
        model.zero_grad()
        found = [objective(model, part)[:2] for part in split(batch, full_rows)]
        assert len(found) == parts
        loss, count = map(sum, zip(*found, strict=True))
        loss.backward()
        for name, p in model.named_parameters():
            assert torch.allclose(plain.get(name, torch.zeros_like(p)), p.grad, atol=1e-4), name
        yield loss.item(), int(count)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_against_plain_rows_and_in_parts(name, checkpointing, monkeypatch) -> None:
    check_answers_in_parts(lively(CONFIGS[name], checkpointing=checkpointing), monkeypatch)


def test_recomputation_spares_memory_where_answers_share_a_prompt() -> None:
    """`--checkpointing` counts for RL and preference training, whose layers keep keys and values of the prompts."""
    prompt, tokens = list(range(60)), list(range(40))
    answer = Completion(tokens, [1] * 40, "length", [-1.0] * 40)
    batch = AnswerBatch.of({0: [answer_row(prompt, answer, 1.0)] * 4}, torch.device("cpu"))
    kept = []

    def weigh(tensor: torch.Tensor) -> torch.Tensor:
        kept[-1] += tensor.nbytes
        return tensor

    for checkpointing in (False, True):
        model = lively(CONFIGS["reference"], checkpointing=checkpointing)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
            loss = PolicyGradient()(model, batch).total
        loss.backward()
    assert kept[1] < 0.5 * kept[0]


def check_answers_in_parts(model, monkeypatch) -> None:
    """Several answers behind each of some prompts, of which one is longer than the window: all at once, and split."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randint(model.config.vocab_size, shape, generator=generator)  # noqa: E731
    answers = []
    for question, (before, lengths) in enumerate({200: [3, 9, 1], 40: [12, 12], 1: [5, 30, 2, 7]}.items()):
        prompt = draw(before + 1).tolist()
        for length in lengths:
            mask, chances = draw(length) % 3 > 0, torch.randn(length, generator=generator)
            answer = Completion(draw(length).tolist(), mask.int().tolist(), "length", (chances * mask).tolist())
            if length % 2:  # it has an end token, which was chosen too
                answer.reason, answer.logprobs, answer.end = "stop", [*answer.logprobs, -0.5], END
            answers.append((question, prompt, answer, float(torch.randn(1, generator=generator))))
    rows = [answer_row(prompt, answer, advantage) for _, prompt, answer, advantage in answers]
    for (_, prompt, answer, _), row in zip(answers, rows, strict=True):
        ends = [END] * (answer.reason == "stop")
        ids = torch.tensor([*prompt, *answer.tokens, *ends])[None]
        assert (row.targets >= 0).tolist() == [*map(bool, answer.mask), *map(bool, ends)]
        logprobs = model(ids[:, :-1])[0, len(prompt) - 1 :].log_softmax(-1)
        chosen = logprobs.gather(-1, ids[0, len(prompt) :, None])
        assert ((row.targets >= 0) == (row.advantages != 0)).all()
        (-(chosen[:, 0] * row.advantages).sum()).backward()
    groups = {question: rows[first:end] for question, (first, end) in enumerate([(0, 3), (3, 5), (5, 9)])}
    batch = AnswerBatch.of(groups, torch.device("cpu"))
    fake_flash(monkeypatch)
    model.attention = "flash3"  # a path without positions
    source = Rollouts.__new__(Rollouts)  # only the context counts here
    source.config = SimpleNamespace(max_seq_len=210)
    count = int((batch.targets >= 0).sum())
    for _, total in in_parts(model, PolicyGradient(), source.split, batch, {9: 1, 4: 3, 0: 9}):
        assert total == count
