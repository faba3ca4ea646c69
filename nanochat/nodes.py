"""Work that one process of each node does for all of them: fetching, converting, generating files."""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nanochat.log import say

SAY_EVERY = 10.0  # seconds


def once_a_node(what: str, work: Callable[[], Any]) -> Any:
    """`work()`, a JSON value, done by local rank 0 of each node; the other ranks wait on torchrun's store meanwhile.

    Never inside a collective, whose time-out would end a long download. A ValueError on one node is one on every rank.
    `what` names the work in messages and in the store. Without torchrun every process does the work itself.
    """
    env = os.environ
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or env.get("WORLD_SIZE") == "1":
        return work()
    from torch.distributed import TCPStore  # slow, and only needed here

    address = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    prefix, node = f"nanochat/{env['TORCHELASTIC_RESTART_COUNT']}/{what}/", int(env["GROUP_RANK"])
    if env["LOCAL_RANK"] == "0":
        answer = {"error": f"{what}: node {node} stopped, its log says why"}
        try:
            answer = {"value": work()}
        except ValueError as error:
            answer = {"error": str(error)}
        finally:  # whatever happened, the others must not wait for ever
            store.set(f"{prefix}{node}", json.dumps(answer))
    answers = [json.loads(_wait_for(store, f"{prefix}{n}", what)) for n in range(int(env["GROUP_WORLD_SIZE"]))]
    for answer in [answers[node], *answers]:  # of several complaints, that of our own node
        if "error" in answer:
            raise ValueError(answer["error"])
    return answers[node]["value"]


def _wait_for(store: Any, key: str, what: str) -> bytes:
    start = said = time.monotonic()
    while not store.check([key]):
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            say(f"rank {os.environ['RANK']} waits for {what}, {said - start:.0f} s so far")
        time.sleep(0.1)
    return store.get(key)
