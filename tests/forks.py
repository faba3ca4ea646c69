"""Processes and ranks forked from one that has imported the code: as real as any other, and seconds sooner at work."""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import re
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PRELOADED = "torch._dynamo nanochat.run nanochat.evals.bpb nanochat.evals.chat nanochat.data.corpus".split()
PRELOADED += ["pyarrow.dataset", "scipy.stats", *(["tracks.lab.run"] if find_spec("tracks.lab") else [])]
LIFETIME = 300  # seconds, after which a process tells where it hangs, and ends
SETTINGS = ("NANOCHAT_", "HF_", "TIKTOKEN_", "WANDB_", "RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "GROUP_")


def forking():
    """Return the context of processes that are forked from one that has imported the code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "scripts.base_train", *PRELOADED])
    return context


class Forked:
    """One process, or the ranks of a process group, at work on `function(*arguments)` in an environment of its own.

    What rank r prints goes to `folder/r.out` and `folder/r.err`.
    """

    def __init__(self, folder: Path, function: Callable, *arguments: Any, ranks: int = 1, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, context = folder, forking()
        if ranks > 1:
            from torch.distributed import TCPStore

            self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            variables |= {"WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "localhost"}
            variables |= {"MASTER_PORT": f"{self._store.port}", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            variables |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.processes = []
        atexit.register(self.kill)  # before multiprocessing asks them to end, which a hung rank does not hear
        for rank in range(ranks):
            place = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if ranks > 1 else {}
            whole = (folder / f"{rank}", variables | place, function, arguments)
            self.processes.append(context.Process(target=_work, args=whole, daemon=True))
            self.processes[-1].start()

    def signal(self, number: int, rank: int = 0) -> None:
        os.kill(self.processes[rank].pid, number)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def codes(self, timeout: float = 180):
        """The exit codes of all ranks; whoever is not done in time is killed, and that fails."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        self.kill()
        assert not late, f"ranks {late} were still at work after {timeout} seconds: {self.out()}{self.err()}"
        return [process.exitcode for process in self.processes]

    def done(self, timeout: float = 180):
        """What rank 0 printed, once all ranks have ended well."""
        assert set(self.codes(timeout)) == {0}, "".join(self.err(rank) for rank in range(len(self.processes)))
        return self.out()

    def refused(self, code: int = 2):
        """The one sentence with which it ended, the same on all ranks."""
        assert set(self.codes()) == {code}, self.err()
        [said] = {self.err(rank) for rank in range(len(self.processes))}
        assert re.fullmatch("error: .*\n", said), said
        return said.removeprefix("error: ").strip()

    def out(self, rank: int = 0, end: str = "out"):
        path = self.folder / f"{rank}.{end}"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def err(self, rank: int = 0):
        return self.out(rank, "err")


def begin() -> None:
    """Let a forked process be like a new one. Under pytest the parent's streams may be of its own making."""
    import torch

    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    gc.freeze()  # collections leave alone what was imported, and the memory is not copied for them
    faulthandler.dump_traceback_later(LIFETIME, exit=True)


def _work(files: Path, variables: dict[str, str], function: Callable, arguments: tuple) -> None:
    for number, end in ((1, "out"), (2, "err")):
        file = os.open(f"{files}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, number)
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        del os.environ[name]
    os.environ.update({"HF_HUB_OFFLINE": "1"} | variables)
    begin()
    try:
        function(*arguments)
    except Exception:
        traceback.print_exc()
        raise SystemExit(70) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run_module(before: Callable | None, module: str, *flags: str) -> None:
    """`python -m MODULE FLAGS`, once `before` was called."""
    if before:
        before()
    sys.argv = [module, *flags]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
