"""Write an embedded world: `python -m nanochat.world --out=FOLDER --seed=1 --size=small`."""

from dataclasses import dataclass
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.world.writer import SIZES, write_world


@dataclass(frozen=True)
class Config:
    """Write an embedded world as a local mirror of the hub."""

    out: str = option("", "folder to write", group="place", unit="FOLDER")
    seed: Count = option(1, "seed of all names and facts", group="world", unit="SEED", least=0)
    size: str = option("small", f"one of {', '.join(SIZES)}", group="world", unit="SIZE")


def main(config: Config) -> None:
    if not config.out:
        raise ValueError("--out is missing, name the folder to write")
    folder = Path(config.out).expanduser()
    # An existing world of this seed and size is left alone.
    is_new = write_world(folder, config.seed, config.size)
    # Everything below the folder, with the record world.json.
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print0(f"{folder}: {'written' if is_new else 'already there'}, {len(files)} files, {size:,} bytes")


if __name__ == "__main__":
    run(main, Config)
