"""Work that one process of each node does for all of them: fetching, converting, generating files."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any


def once_a_node(name: str, work: Callable[[], Any]) -> Any:
    """Run `work` in local rank 0 of each node and return its JSON value on all ranks of the node.

    A ValueError on one node is raised on every rank. Without torchrun every process does the work itself. name: of the
    work, in messages and in the store.
    """
    env = os.environ
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or env.get("WORLD_SIZE") == "1":
        return work()
    # Imported here: torch takes seconds to load, and only the ranks of torchrun need it.
    from torch.distributed import TCPStore

    from nanochat.runtime import post_result, wait_result

    address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    prefix = f"nanochat/{env['TORCHELASTIC_RESTART_COUNT']}/{name}/node "
    own = env["GROUP_RANK"]
    if env["LOCAL_RANK"] == "0":
        post_result(store, prefix + own, work, ValueError)
    # The own node first: if several fail, each reports its own failure.
    value = wait_result(store, prefix + own, ValueError, notice=name)
    for node in range(int(env["GROUP_WORLD_SIZE"])):
        wait_result(store, f"{prefix}{node}", ValueError, notice=name)
    return value
