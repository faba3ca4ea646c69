"""The chat server under load and under abuse: many clients at once, one after another, and bad requests.

    python -m bench.serve [--seconds 60] [--clients 64] [--depth 4]

`scripts.chat_web` serves a model of random weights. Each client requests answers of 16 to 128 tokens, one after
another, streamed or whole; one request in twenty is left in the middle. /health is requested all the time. The peer is
the same server with one client. Then a new server with a key is abused: 1,000 clients leave, others send too much,
nonsense, half of a request, or read nothing. The exit status is 1 if a goal is missed.
"""

import itertools
import json
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

import httpx

from bench.common import parser_of
from bench.findings import Findings
from bench.hostile_requests import CHAT, post
from nanochat.log import table_of

VOCABULARY = 4096
CONTEXT = 1024
LEAVES = 20
# Goals.
FASTER = 4.0  # times the peer's rate
FLAT = 0.03  # growth of memory
PROMPT = 100.0  # ms for /health
# Abuse.
LEAVE = 1000  # clients that leave
REPEAT = 20  # of each bad request
STAY = 64  # open connections
KEY = "a key"
LOGIN = f"Authorization: Bearer {KEY}"
SETTLED = 0.25  # share of the time before memory is measured: threads, pools and caches have their size by then


def random_words(dice: random.Random, count: int):
    return " ".join("".join(dice.choices(ascii_lowercase, k=dice.randint(2, 8))) for _ in range(count))


def served(base: Path, slots: int, **variables: str):
    """Run a server on all processors."""
    from bench.served import serving  # imports torch, and --help does not wait for that

    return serving(base, f"--slots={slots}", OMP_NUM_THREADS=str(os.cpu_count()), **variables)


def memory(pid: int):
    """Return the resident memory of a process in MB."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024 / 1e6


def chat_request(number: int):
    """Return the request with a number; the same number gives the same request."""
    dice = random.Random(number)
    message = {"role": "user", "content": random_words(dice, dice.randint(4, 24))}
    about = {"messages": [message], "max_tokens": dice.randint(16, 128), "seed": number}
    return about | {"stream": number % 2 == 0, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Answer:
    status: int | str  # "left": the client did not wait; or the name of an error
    tokens: int = 0
    first: float | None = None  # ms until the first token, of a stream


def ask_until(end: float, client: httpx.Client, numbers: Iterator[int], leaves: bool):
    """Send one request after another, and return the answers. leaves: from some of them before they are complete."""
    answers = []
    with client:
        while time.monotonic() < end:
            number = next(numbers)
            try:
                answers.append(ask(client, number, leaves and number % LEAVES == 0))
            except httpx.HTTPError as error:
                answers.append(Answer(type(error).__name__))
    return answers


def ask(client: httpx.Client, number: int, leaves: bool):
    start = time.perf_counter()
    content = ""
    first = None
    with client.stream("POST", CHAT, json=chat_request(number)) as response:
        if leaves:
            return Answer("left")
        for piece in response.iter_text():
            content += piece
            if first is None and content.count("data: ") > 1:  # the first event of a stream has the role alone
                first = 1e3 * (time.perf_counter() - start)
    if response.status_code != 200:
        time.sleep(0.1)
        return Answer(response.status_code)
    if number % 2 == 0:
        *_, content, done, _ = content.split("\n\n")
        assert done == "data: [DONE]", done
    return Answer(200, json.loads(content.removeprefix("data: "))["usage"]["completion_tokens"], first)


@contextmanager
def watched(url: str):
    """Measure /health meanwhile, in ms."""
    over = threading.Event()
    waits = []

    def watch() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not over.wait(0.05):
                start = time.perf_counter()
                client.get("/health").raise_for_status()
                waits.append(1e3 * (time.perf_counter() - start))

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch)
        try:
            yield waits
        finally:
            over.set()
    watching.result()


def measure(base: Path, slots: int, clients: int, seconds: float):
    """Measure a new server with a number of clients."""
    with served(base, slots) as server:
        httpx.post(f"{server.url}{CHAT}", json=chat_request(0), timeout=300)
        ready = [httpx.Client(base_url=server.url, timeout=300, verify=False) for _ in range(clients)]
        numbers = itertools.count()
        memories = []
        start = time.monotonic()
        with watched(server.url) as waits, ThreadPoolExecutor(clients) as threads:
            working = [threads.submit(ask_until, start + seconds, one, numbers, clients > 1) for one in ready]
            while any(not one.done() for one in working):
                time.sleep(0.1)
                if time.monotonic() - start > SETTLED * seconds:
                    memories.append(memory(server.process.pid))
            took = time.monotonic() - start
        time.sleep(1)
        kept = server.running()
    answers = [answer for one in working for answer in one.result()]
    statuses = Counter(answer.status for answer in answers)
    size = max(1, len(memories) // 10)  # means of the first and the last tenth: single values vary
    growth = statistics.mean(memories[-size:]) - statistics.mean(memories[:size])
    return {
        "rate": sum(answer.tokens for answer in answers) / took,
        "requests": statuses[200],
        "left": statuses["left"],
        "busy": statuses[429],
        "errors": len(answers) - statuses[200] - statuses[429] - statuses["left"],
        "leaked slots": kept,
        "memory": statistics.median(memories),
        "growth": growth,
        "first token": statistics.median(answer.first for answer in answers if answer.first),
        **health(waits),
    }


def health(waits: list[float]):
    return {"health p50": statistics.median(waits), "health worst": max(waits)}


def bad_requests():
    """Return requests, with the start of the response that each must get."""
    return {
        post(CHAT, b" " * 10_000_000, LOGIN): b"HTTP/1.1 413",
        post(CHAT, b"[" * 900_000, LOGIN): b"HTTP/1.1 400",
        post(CHAT, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', LOGIN): b"HTTP/1.1 400",
        post(CHAT, json.dumps(chat_request(0)).encode(), "Authorization: Bearer wrong"): b"HTTP/1.1 401",
        b"\x16\x03\x01\x02\x00\x01\x00" + b"A" * 100_000: b"HTTP/1.1 4",
    }


def abuse(base: Path, slots: int):
    """Measure /health of a new server under abuse, and check that it works afterwards."""
    bad = bad_requests()
    question = json.dumps(chat_request(0)).encode()
    # Megabytes for a client that reads nothing.
    endless = chat_request(0) | {"n": 4, "max_tokens": 900, "stream": True}
    endless = json.dumps(endless | {"stream_options": {}}).encode()
    with served(base, slots, NANOCHAT_API_KEY=KEY) as server, ExitStack() as kept:
        good = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=300)
        assert good.post(CHAT, json=chat_request(0)).status_code == 200

        def leaves(number: int):
            dice = random.Random(number)
            sent = post(CHAT, json.dumps(chat_request(number)).encode(), LOGIN)
            with suppress(ConnectionError), socket.create_connection(server.address) as line:
                line.sendall(sent[: dice.randrange(len(sent))] if number % 4 == 0 else sent)
                time.sleep(dice.choice((0, 0, 0.01, 0.1)))
            return True

        def is_refused(sent: bytes):
            with socket.create_connection(server.address, timeout=60) as line:
                with suppress(ConnectionError):  # the server may stop reading before it answers
                    line.sendall(sent)
                try:
                    return line.recv(1000).startswith(bad[sent])
                except TimeoutError:
                    return False
                except ConnectionError:
                    return sent[:1] != b"P" or len(sent) > 10**6  # this response may be lost with the connection

        def stays(number: int):
            line = kept.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # nobody reads the response
            line.connect(server.address)
            whole = post(CHAT, question, LOGIN)
            sent = whole[:-9], whole[:60], post(CHAT, endless, LOGIN)
            line.sendall(sent[number % 3])
            return True

        work = [(leaves, number) for number in range(LEAVE)] + [(stays, number) for number in range(STAY)]
        work += [(is_refused, sent) for sent in bad] * REPEAT
        random.Random(1).shuffle(work)
        with watched(server.url) as waits, ThreadPoolExecutor(16) as threads:
            fine = list(threads.map(lambda one: one[0](one[1]), work))
        kept.close()
        leaked = 0 if server.becomes_idle() else server.running()
        again = good.post(CHAT, json=chat_request(0)).status_code
    return {
        "bad requests": len(work),
        "errors": fine.count(False) + (1 if again != 200 else 0),
        "leaked slots": leaked,
        **health(waits),
    }


UNITS = {
    "rate": "tokens/s",
    "memory": "MB",
    "growth": "MB",
    **dict.fromkeys(("first token", "health p50", "health worst"), "ms"),
}


def missed_goals(found: dict, abused: dict, ratio: float) -> list[str]:
    """Return the goals that are missed. ratio: of the tokens a second of many clients to those of one."""
    missed = []
    if ratio < FASTER:
        missed.append(f"{FASTER:g} times the tokens a second of one after another")
    if found["errors"]:
        missed.append("no error but 429")
    if found["leaked slots"]:
        missed.append("no leaked slot")
    if found["growth"] >= FLAT * found["memory"]:
        missed.append(f"memory grows by less than {FLAT:.0%}")
    if found["health worst"] > PROMPT:
        missed.append(f"/health within {PROMPT:g} ms")
    if abused["health worst"] > PROMPT:
        missed.append(f"/health within {PROMPT:g} ms under abuse")
    if abused["errors"]:
        missed.append("bad requests are refused, the rest answered")
    if abused["leaked slots"]:
        missed.append("no leaked slot after abuse")
    return missed


def main() -> None:
    parser = parser_of("serve", __doc__, clients=64, slots=64, depth=4)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    findings = Findings("serve", options.json)
    from bench.served import write_model

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        text = [random_words(random.Random(1), 20_000)]
        sizes = {"depth": options.depth, "width": 64 * options.depth, "heads": options.depth, "kv_heads": options.depth}
        write_model(base, endless=True, text=text, vocabulary=VOCABULARY, max_seq_len=CONTEXT, **sizes)
        alone = measure(base, options.slots, 1, options.seconds / 3)
        many = measure(base, options.slots, options.clients, options.seconds)
        abused = abuse(base, options.slots)
    columns = f"Figure | {options.clients} clients:,.1f | One after another:,.1f | Under abuse:,.1f | Unit"
    rows = [[name, *(run.get(name) for run in (many, alone, abused)), UNITS.get(name)] for name in many | abused]
    findings.show(table_of("", columns, rows))
    ratio = many["rate"] / alone["rate"]
    print(f"\n{ratio:.1f} times the tokens a second of one after another")
    missed = missed_goals(many, abused, ratio)
    print(f"goals missed: {', '.join(missed)}" if missed else "all goals are reached")
    findings.add(ratio=ratio, missed=missed)
    findings.finish()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
