"""Delete the checkpoints of a run; its record, log and evaluations stay. The lab does this with --keep=none.

python -m tracks.lab.prune --run=chat_sft/mix-small-plain-1-1
"""

import shutil

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.paths import base_dir, hold_folder


@options("prune")
class Config:
    """Delete the checkpoints of a finished run."""

    run: str = option("", "the run, as STAGE/TAG")


def prune(run: str) -> None:
    """Delete the checkpoints of a run, STAGE/TAG, that nobody trains at the moment."""
    folder = base_dir() / run
    with hold_folder(folder):
        checkpoints = sorted(folder.glob("step_*"))
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint)
    if checkpoints:
        print0(f"lab: the checkpoints in {folder} are deleted")


def main(config: Config) -> None:
    if not config.run or not (base_dir() / config.run / "outcome.json").exists():
        raise UserError(f"--run={config.run} is no finished run: name one as STAGE/TAG")
    prune(config.run)


if __name__ == "__main__":
    run_script(main)
