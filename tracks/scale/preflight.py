"""Check all ranks before a job: software, base directory, disk, clocks, speed and network.

python -m tracks.scale.preflight
torchrun --nproc_per_node=8 -m tracks.scale.preflight
"""

import faulthandler

from nanochat.config import option, options, run_script
from nanochat.log import is_main_rank
from tracks.scale.checks import RankRow, check, join, measure, meeting, report


@options("preflight")
class Config:
    """Check all ranks before a job."""

    files: str = option("", "files that a job needs, separated by commas: in the base directory, or with their folders")


def main(config: Config) -> None:
    faulthandler.dump_traceback_later(120, exit=True)  # nothing else interrupts a collective
    with meeting():
        exchange = join()
        facts, row = check(exchange, config.files.split(","))
    product, links, network = measure()
    with meeting():
        found = exchange("ranks", row._replace(product=product, links=links))
    ranks = [RankRow(*values) for values in found]
    if is_main_rank():
        report(facts, ranks, network)


if __name__ == "__main__":
    run_script(main)
