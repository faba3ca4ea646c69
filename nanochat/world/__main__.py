"""Write an embedded world: `python -m nanochat.world --seed=2 --size=tiny`."""

from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options, run_script
from nanochat.log import print0
from nanochat.paths import world_dir
from nanochat.world.writer import SIZES, Size, ensure_world


@options("world")
class Config:
    """Write an embedded world: text, tasks, and a bundle of CORE tasks."""

    out: str = option("", "folder to write (default: below NANOCHAT_BASE_DIR, where --data=world reads)")
    seed: Count = option(1, "seed of all names and facts")
    size: Literal["", Size] = option(
        "", f"number of texts: {', '.join(SIZES)} (default: small, or that of the world that is there)"
    )


def main(config: Config) -> None:
    folder = Path(config.out).expanduser() if config.out else world_dir(config.seed)
    # An existing world of this seed and size is left alone.
    ensure_world(folder, config.seed, config.size)
    print0(f"embedded world: {folder}")


if __name__ == "__main__":
    run_script(main)
