"""Check all ranks before a job: software, base directory, disk, clocks, speed and network.

python -m tracks.scale.preflight
torchrun --nproc_per_node=8 -m tracks.scale.preflight
"""

import faulthandler

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import is_main_rank
from tracks.scale.checks import check, join, measure, report


@options("preflight")
class Config:
    """Check all ranks before a job."""

    files: str = option("", "files that a job needs, separated by commas: in the base directory, or with their folders")


def main(config: Config) -> None:
    faulthandler.dump_traceback_later(120, exit=True)  # nothing else interrupts a collective
    try:
        exchange = join()
        facts, row = check(exchange, config.files.split(","))
        measured, network = measure()
        ranks = exchange("ranks", row + measured)
    except RuntimeError as error:  # torch's, about a port that is in use or a rank that is silent
        raise UserError(f"the ranks do not meet: {error}") from None
    if is_main_rank():
        report(facts, ranks, network)


if __name__ == "__main__":
    run_script(main)
