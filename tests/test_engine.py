"""The engine: what comes out is what a plain loop over one row gives, whoever else is there; tools, ends, slots."""

import random
from collections import deque
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from conftest import each_row
from engines import (
    ID,
    NEVER,
    SETTINGS,
    SIZES,
    TOKENIZER,
    Late,
    check_greedy,
    collected,
    devices,
    ids_of,
    mixed,
    model_of,
    tokens_of,
)
from models import CONFIGS, SMALL, lively
from torch.nn.utils.rnn import pad_sequence

from nanochat.engine import Completion, Engine, Request, samples_of
from nanochat.fused import PackedLinear
from nanochat.gpt import GPT, GPTConfig


def plain(model, request, sample=0):
    """The sample by the book: one row, no cache, one token at a time; tools are not called."""
    ids, uniform = list(request.tokens), np.random.default_rng([request.seed, sample]).random(request.max_new_tokens)
    context = model.config.max_seq_len
    for u in uniform[: context - len(ids)]:
        logits = model(torch.tensor([ids]))[0, -1]
        if request.temperature == 0:
            ids.append(int(logits.argmax()))
            continue
        chances = (logits.double() / request.temperature).softmax(0).numpy()
        order = np.argsort(-chances, kind="stable")
        kept = order[: request.top_k or None]
        before = np.cumsum(chances[kept] / chances[kept].sum()) - chances[kept] / chances[kept].sum()
        kept = kept[before < request.top_p]
        chances[np.setdiff1d(order, kept)] = 0
        ids.append(int(np.searchsorted(np.cumsum(chances), u * chances.sum(), side="right")))
    return ids[len(request.tokens) :]


@pytest.mark.parametrize("name", ["reference", "odd shapes", "october-2025"])
def test_greedy_is_the_plain_loop(name) -> None:
    model = model_of(name)
    assert 129 in model.config.windows or name == "october-2025"
    check_greedy(model)


def test_samples_are_the_plain_loops() -> None:
    model = model_of()
    requests = [replace(r, **SETTINGS[i % 5], max_new_tokens=8, n=2) for i, r in enumerate(mixed(10))]
    expected = [[plain(model, request, sample) for sample in range(2)] for request in requests]
    assert tokens_of(Engine(model, TOKENIZER).generate(requests)) == expected


def watched(monkeypatch, engine):
    """What the engine does from now on: how many rows its steps take, and how long the prompts are that it runs."""
    steps, runs, decoder = [], [], engine.decoder
    compute = decoder._compute
    decoder._compute = lambda rows, *rest: steps.append(rows) or compute(rows, *rest)

    def pad(prompts, **rest):
        runs.append([len(ids) for ids in prompts])
        return pad_sequence(prompts, **rest)

    monkeypatch.setattr("nanochat.decoder.pad_sequence", pad)
    return steps, runs


def test_slots_are_filled_as_soon_as_they_are_free_and_prompts_run_in_batches_of_like_length(monkeypatch) -> None:
    requests = [Request([65] * (2 + i), 10 + 7 * (i % 5), stop=NEVER) for i in range(20)]
    engine = Engine(model_of(), TOKENIZER, slots=4)
    steps, runs = watched(monkeypatch, engine)
    engine.generate(requests)
    assert sum(steps) == sum(request.max_new_tokens for request in requests)  # no row runs beyond its end
    assert set(steps[:-38]) == {4}  # full until the last rows are under way, of at most 38 tokens
    assert runs[0] == [20, 19, 18, 17]
    assert sorted(chain.from_iterable(runs)) == list(range(1, 21))
    monkeypatch.setattr("nanochat.decoder.PREFILL_TOKENS", 300)
    requests = [replace(request, n=4, max_new_tokens=3) for request in mixed(20, temperature=1.0)]
    engine = Engine(model_of(), TOKENIZER, slots=80)
    _, runs = watched(monkeypatch, engine)
    found = engine.generate(requests)
    lengths = sorted((len(request.tokens) - 1 for request in requests if len(request.tokens) > 1), reverse=True)
    assert list(chain.from_iterable(runs)) == lengths
    assert all(len(batch) == 1 or len(batch) * batch[0] <= 300 for batch in runs)
    assert len(runs) < len(lengths)
    few = Engine(model_of(), TOKENIZER, slots=3)
    _, runs = watched(monkeypatch, few)
    assert found == few.generate(requests)
    # A sample that comes later takes the prompt from one that is still there.
    assert len(list(chain.from_iterable(runs))) < 2 * len(lengths)


def script_model(*ids, **fields):
    """A model in which each id of a chain is followed by the next, whatever stood before."""
    sizes = {**SMALL, **SIZES, **fields}
    model = GPT(GPTConfig(**sizes))
    model.init_weights(1)
    with torch.no_grad():
        seen = torch.nn.functional.rms_norm(model.embed.weight, (64,))
        model.head.weight.zero_()
        for token, following in pairwise(ids):
            model.head.weight[following] += 0.2 * seen[token]
    return model.requires_grad_(False)


def say(engine, prompt="A", most=50, **settings):
    [[completion]] = engine.generate([Request(ids_of(prompt), most, **settings)])
    return TOKENIZER.decode(completion.tokens).replace("<|", "[").replace("|>", "]"), completion


def speaker(script):
    return Engine(script_model(*ids_of(script)), TOKENIZER)


# script | settings | text | reason. The last but one of the ends is at the last token allowed. What is no expression,
# or no call, stays as it was written; a model may even write an output itself.
ENDS = """
ABC[assistant_end] | {} | BC | stop
ABC[bos] | {} | BC | stop
ABCDEF | {"stop": frozenset(b"E")} | BCD | stop
ABC[assistant_end]DE | {"stop": frozenset(b"E")} | BC[assistant_end]D | stop
ABCDEF | {"most": 3} | BCD | length
ABCD | {"most": 3, "stop": frozenset(b"D")} | BC | stop
AB | {"most": 1} | B | length
A[python_start]xy[python_end]Z[assistant_end] | {} | [python_start]xy[python_end]Z | stop
A[python_start]1/0[python_end]Z[assistant_end] | {} | [python_start]1/0[python_end]Z | stop
A[python_start][python_end]Z[assistant_end] | {} | [python_start][python_end]Z | stop
A[python_end]Z[assistant_end] | {} | [python_end]Z | stop
A[output_start]1[output_end]Z[assistant_end] | {} | [output_start]1[output_end]Z | stop
A[python_start]12[assistant_end] | {} | [python_start]12 | stop
"""


@each_row("script settings text reason", ENDS)
def test_ends(script, settings, text, reason) -> None:
    heard, completion = say(speaker(script), **eval(settings))
    assert (heard, completion.reason) == (text, reason)
    assert set(completion.mask) == {1}


CALL = "A[python_start]12*3[python_end]B[output_end]Z[assistant_end]"


def test_the_calculator_answers_as_far_as_there_is_room_and_a_prompt_has_to_fit() -> None:
    """By the chain of the script a 3 would be followed by the end of the expression; 12*3 gives 36."""
    engine = speaker(CALL)
    heard, complete = say(engine)
    assert heard == "[python_start]12*3[python_end][output_start]36[output_end]Z"
    assert (complete.mask, complete.reason) == ([1] * 6 + [0] * 4 + [1], "stop")
    for most in range(1, len(complete.tokens) + 1):
        _, completion = say(engine, most=most)
        assert completion == Completion(complete.tokens[:most], complete.mask[:most], "length", [0.0] * most)
    for room in range(1, 12, 2):  # in the context
        _, completion = say(engine, prompt="B" * (191 - room) + "A")
        assert completion == Completion(complete.tokens[:room], complete.mask[:room], "length", [0.0] * room)
    for tokens in ([], [65] * 192):
        with pytest.raises(ValueError, match=f"prompt 1 has {len(tokens)} tokens, the context holds 1 to 191"):
            engine.generate([Request([65], 5), Request(tokens, 5)])


def test_only_the_row_that_asks_gets_an_answer() -> None:
    """Rows in different places of one chain, some of them in an expression of their own."""
    model = script_model(*ids_of(CALL))
    starts = ["A", "B", "2", "[python_start]", "Z", "A", "[output_end]", "*"]
    engine = Engine(model, TOKENIZER, slots=3)
    requests = [Request(ids_of(start), 4 + 3 * i) for i, start in enumerate(starts)]
    together = engine.generate(requests)
    assert together == [engine.generate([request])[0] for request in requests]
    assert [0 in completion.mask for [completion] in together] == [False] + [False] * 4 + [True, False, False]


@pytest.mark.parametrize("device", devices())
def test_company_slots_and_a_refresh_change_nothing_in_fp32(device) -> None:
    model, other = (lively({**CONFIGS["reference"], **SIZES}, seed).requires_grad_(False).to(device) for seed in (5, 8))
    requests = [replace(r, **SETTINGS[i % 5], n=1 + i % 3) for i, r in enumerate(mixed(24, seed=21))]
    engines = [Engine(model, TOKENIZER, slots=slots) for slots in (3, 64)]
    found = engines[0].generate(requests)
    assert engines[1].generate(requests) == found
    assert [engines[1].generate([request])[0] for request in requests] == found
    model.load_state_dict(other.state_dict())
    fresh = Engine(other, TOKENIZER).generate(requests)
    assert fresh != found
    for engine in engines:
        assert engine.generate(requests) == found
        engine.update_weights()
        assert engine.generate(requests) == fresh
        assert device == "cpu" or any(graph is not None for graph in engine.decoder.graphs.values())


@pytest.mark.parametrize("device", [*devices(), "late"])
@pytest.mark.parametrize("slots", [2, 7])
def test_jobs_come_and_go_while_others_run(slots, device, seed) -> None:
    """Each request is answered as if alone, though rows are longer than those before, or leave before their end."""
    dice = random.Random(seed)  # of who comes and goes when; of random requests one in some hundred has a tie of words
    model, requests = model_of().to("cuda" if device == "cuda" else "cpu"), mixed(24)
    requests = [replace(request, **SETTINGS[i % 5]) for i, request in enumerate(requests)]
    requests.sort(key=lambda request: len(request.tokens) + request.max_new_tokens)  # the cache has to grow
    alone = Engine(model, TOKENIZER).generate(requests)
    engine, jobs, left = Engine(model, TOKENIZER, slots=slots), [], {}  # a job: a sample's events, and the sample
    if device == "late":
        engine.decoder = Late(engine.decoder)
    while len(jobs) < 24 or not engine.is_idle:
        if len(jobs) < 24 and dice.random() < 0.3:
            jobs.append((deque(), samples_of([requests[len(jobs)]])))
            engine.submit(jobs[-1][1], jobs[-1][0])
        running = [i for i, (events, _) in enumerate(jobs) if i not in left and not (events and events[-1].reason)]
        if running and (dice.random() < 0.03 or (len(jobs) == 12 and not left)):  # one leaves in any case
            number = dice.choice(running)
            events, [sample] = jobs[number]
            engine.cancel([sample])
            assert sample not in engine.rows  # its slot is free at once
            left[number] = len(events)
        engine.step()
    assert engine.rows == []
    assert not engine.waiting
    for number, ((events, _), [completion]) in enumerate(zip(jobs, alone, strict=True)):
        if number in left:
            assert [event.token for event in events] == completion.tokens[: left[number]]
        else:
            assert collected(events) == {(0, 0): (completion.tokens, completion.reason)}
    assert left


def test_reserved_memory_never_grows_and_there_are_fewer_slots_where_it_is_short(monkeypatch) -> None:
    model, requests = model_of(), mixed(12)
    engine = Engine(model, TOKENIZER, slots=4)
    engine.reserve()
    store = engine.decoder.cache.store
    assert (engine.slots, engine.decoder.length) == (4, 192)
    found = engine.generate(requests)
    assert engine.decoder.cache.store is store
    monkeypatch.setattr("nanochat.decoder.free_memory", lambda device: store.nbytes)  # half of it holds 2 of 4 slots
    few = Engine(model, TOKENIZER, slots=4)
    few.reserve()
    assert few.slots == few.decoder.cache.slots == 2
    assert few.generate(requests) == found


def test_a_server_meets_every_row_count_when_it_starts(monkeypatch) -> None:
    """oneDNN keeps something for each: prompts and steps of any size find nothing new afterwards."""
    met: list[tuple[torch.Size, int]] = []
    product = PackedLinear._product

    def watched(layer: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        met.append((layer.matrix().shape, x.numel() // x.shape[-1]))
        return product(layer, x)

    monkeypatch.setattr(PackedLinear, "_product", watched)
    engine = Engine(model_of(), TOKENIZER, slots=40)
    engine.reserve()
    known = set(met)
    met.clear()
    prompts = [Request([3] * length, 2, n=length) for length in (1, 2, 3, 7, 19, 37, 40, 100)]
    for prompt in prompts:
        engine.generate([prompt])
    engine.generate(prompts)
    if engine.packed.blocks[0].mlp.up.packed:  # where a CPU orders weights
        assert met
    assert set(met) <= known


def test_a_score_is_a_plain_forwards(monkeypatch) -> None:
    """Each token's log-probability, and those of the likeliest; logits are computed a few positions at a time."""
    monkeypatch.setattr("nanochat.engine.SCORED_AT_ONCE", 7)
    model, row = model_of(), [ID["<|bos|>"], *b"The quick brown fox"]
    plain = model(torch.tensor([row]))[0].log_softmax(-1)
    found = Engine(model, TOKENIZER).score(row, 3)
    assert len(found) == len(row) - 1
    for position, (token, alternatives) in enumerate(zip(row[1:], found, strict=True)):
        likeliest = plain[position].topk(3).indices.tolist()
        assert set(alternatives) == {token, *likeliest}
        assert list(alternatives)[:3] == likeliest
        expected = [float(plain[position, other]) for other in alternatives]
        assert list(alternatives.values()) == pytest.approx(expected, abs=1e-5)
    engine = Engine(model, TOKENIZER)
    assert all(len(alternatives) == 1 for alternatives in engine.score(row, 0))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("is_late", [False, True])
def test_the_likeliest_tokens_of_a_step_are_a_plain_forwards(device, is_late) -> None:
    model = model_of().to(device)
    engine = Engine(model, TOKENIZER, slots=3)
    if is_late and device == "cpu":
        engine.decoder = Late(engine.decoder)
    requests = [
        replace(request, logprobs=number % 3 > 0, likely=number % 3 * 10)
        for number, request in enumerate(mixed(9, temperature=1.0))
    ]
    texts = {number: list(request.tokens) for number, request in enumerate(requests)}
    for event in engine.stream(requests):
        number = event.sample.prompt_number
        if event.token is None:
            continue
        count = requests[number].likely
        logprobs = model(torch.tensor([texts[number]], device=device))[0, -1].log_softmax(-1)
        texts[number].append(event.token)
        if not count:
            assert (event.logprob, event.likely) == (0.0, None)
            continue
        assert event.logprob == pytest.approx(float(logprobs[event.token]), abs=1e-4)
        likeliest = logprobs.topk(min(count, len(logprobs)))
        assert list(event.likely.values())[:count] == pytest.approx(likeliest.values.tolist(), abs=1e-4)
        for token, value in event.likely.items():  # near ties may stand in either order
            assert value == pytest.approx(float(logprobs[token]), abs=1e-4)
        assert event.likely.keys() - {event.token} <= set(logprobs.topk(count + 1).indices.tolist())
        assert event.likely[event.token] == event.logprob
    with pytest.raises(ValueError, match="likely=21 is not from 0 to 20"):
        engine.submit(samples_of([replace(requests[0], likely=21)]), deque())
