"""Write an embedded world: `python -m nanochat.world --out=FOLDER --seed=1 --size=small`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.paths import one_at_a_time
from nanochat.world.writer import SIZES, write_world


@dataclass(frozen=True)
class Config:
    """Write an embedded world as a local mirror of the hub."""

    out: str = option("world", "folder to write", group="place")
    seed: Count = option(1, "seed of all names and facts", group="world", least=0)
    size: Literal[tuple(SIZES)] = option("small", "number of people, documents and questions", group="world")


def main(config: Config) -> None:
    folder = Path(config.out).expanduser()
    # An existing world of this seed and size is left alone.
    with one_at_a_time(folder.with_name(f"{folder.name}.lock")):
        write_world(folder, config.seed, config.size)
    print0(f"embedded world: {folder}")


if __name__ == "__main__":
    run(main, Config)
