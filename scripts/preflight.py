"""Check all nodes before a job starts: software, shared folder, disk, clocks, ranks and network.

python -m scripts.preflight
torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m scripts.preflight
"""

import faulthandler

from nanochat.config import option, options, run
from nanochat.jobs.preflight import check_nodes, measure, meet
from nanochat.settings import DeviceSettings


@options("preflight")
class Config(DeviceSettings):
    """Check the nodes of a job."""

    files: str = option("", "files that each node needs, by comma, from the base folder")
    wait: float = option(25.0, "seconds to wait for another rank", least=1)


def main(config: Config):
    # A rank in a collective that never ends prints its place, and ends.
    faulthandler.dump_traceback_later(6 * config.wait, exit=True)
    with meet(config.wait) as share:
        facts, ranks = check_nodes(share, config.files.split(","))
    measure(config, facts, ranks)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    run(main, Config)
