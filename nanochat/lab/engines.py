"""Engines: run the chains of a lab's job, on this machine or on others. An engine is one function in ENGINES.

A chain is a list of steps that follow one another; a chain that fails ends, and the others go on.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from nanochat.config import collect_signals, stop_signals
from nanochat.jobs.runner import Job, Step, run_step
from nanochat.paths import hold_folder

Chain = Sequence[Step]
Engine = Callable[[Job, Sequence[Chain], int], int]


def local(job: Job, chains: Sequence[Chain], jobs: int) -> int:
    """Run `jobs` chains at a time on this machine; return the number of chains that failed."""
    with hold_folder(job.folder) as lock, collect_signals(*stop_signals()) as stop:

        def run_chain(chain: Chain) -> bool:
            # A signal stops the steps at work, and no others begin.
            return all(not stop and run_step(job, step, lock, stop) == 0 for step in chain)

        with ThreadPoolExecutor(jobs) as pool:
            done = list(pool.map(run_chain, chains))
    if stop:
        raise KeyboardInterrupt
    return done.count(False)


ENGINES: dict[str, Engine] = {"local": local}
