"""Jobs of the engine beside each other: who comes, goes, waits and is answered as if alone."""

import random
from dataclasses import replace
from itertools import zip_longest

import pytest
from engines import NEVER, SETTINGS, TOKENIZER, Late, devices, mixed, model_of, tokens_of

from nanochat.engine import Completion, Engine, Request


def settled(job):
    """Completions of what has come of a job."""
    found = {}
    for number, sample, token, _, reason, _ in job.events:
        completion = found.setdefault((number, sample), Completion(reason=""))
        completion.reason = reason
        if token is not None:
            completion.tokens.append(token)
    return {where: (completion.tokens, completion.reason) for where, completion in found.items()}


@pytest.mark.parametrize("device", [*devices(), "late"])
@pytest.mark.parametrize("slots", [2, 7])
def test_jobs_come_and_go_while_others_run(slots, device):
    """Each request is answered as if alone, though rows are longer than those before, or leave before their end."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)  # of who comes and goes when; of random requests one in some hundred has a tie of words
    model, requests = model_of().to("cuda" if device == "cuda" else "cpu"), mixed(24)
    requests = [replace(request, **SETTINGS[i % 5]) for i, request in enumerate(requests)]
    requests.sort(key=lambda request: len(request.tokens) + request.max_new_tokens)  # the cache has to grow
    alone = Engine(model, TOKENIZER).generate(requests)
    engine, jobs, left = Engine(model, TOKENIZER, slots=slots), [], {}
    if device == "late":
        engine.decoder = Late(engine.decoder)
    while len(jobs) < 24 or any(job.open for job in jobs):
        if len(jobs) < 24 and dice.random() < 0.3:
            jobs.append(engine.submit([requests[len(jobs)]]))
        running = [number for number, job in enumerate(jobs) if job.open]
        if running and dice.random() < 0.03:
            number = dice.choice(running)
            engine.cancel(jobs[number])
            left[number] = len(jobs[number].events)
        engine.step()
    assert engine.rows == []
    assert not engine.waiting
    for number, (job, [completion]) in enumerate(zip(jobs, alone, strict=True)):
        if number in left:
            assert [event.token for event in job.events] == completion.tokens[: left[number]]
        else:
            assert settled(job) == {(0, 0): (completion.tokens, completion.reason)}
    assert left


def test_a_cancelled_row_frees_its_slot_at_once():
    engine = Engine(model_of(), TOKENIZER, slots=2)
    jobs = [engine.submit([Request([65 + i], most, stop=NEVER)]) for i, most in enumerate((99, 99, 3))]
    for _ in range(5):
        engine.step()
    assert [len(job.events) for job in jobs] == [5, 5, 0]
    engine.cancel(jobs[0])
    for _ in range(3):
        engine.step()
    assert [len(job.events) for job in jobs] == [5, 8, 4]
    engine.cancel(jobs[1])
    assert engine.rows == []
    assert [job.open for job in jobs] == [0, 0, 0]


def test_streams_share_the_engine():
    model, requests = model_of(), [replace(request, n=2) for request in mixed(8, temperature=1.0)]
    engine = Engine(model, TOKENIZER, slots=5)
    alone = [list(engine.stream(part)) for part in (requests[:5], requests[5:])]
    assert all(event.logprob == 0 for event in alone[0])
    streams = engine.stream(requests[:5]), engine.stream(requests[5:], logprobs=True)
    given = list(zip_longest(*streams))
    ordered = lambda events: sorted(events, key=lambda event: event[:2])  # noqa: E731
    assert ordered(event for event, _ in given if event) == ordered(alone[0])
    assert ordered(event._replace(logprob=0) for _, event in given if event) == ordered(alone[1])
    assert any(event.logprob < 0 for _, event in given if event)


def test_a_row_longer_than_the_memory_waits_for_those_that_run():
    model = model_of()
    requests = [Request([65, i], 20, stop=NEVER) for i in range(3)]
    expected = tokens_of(Engine(model, TOKENIZER).generate(requests))
    engine = Engine(model, TOKENIZER)
    jobs = [engine.submit([request]) for request in requests]
    engine.step()
    long = engine.submit([Request([65] * 150, 4, stop=NEVER)])
    for _ in range(19):
        engine.step()
        assert len(long.events) == 0
    engine.step()
    assert len(long.events) == 1
    assert [[[event.token for event in job.events if event.token is not None]] for job in jobs] == expected
