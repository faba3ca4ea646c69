"""Write an embedded world: `python -m nanochat.world --out=FOLDER --seed=1 --size=small`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.world.writer import SIZES, write_world


@dataclass(frozen=True)
class Config:
    """Write the embedded world of a seed as a mirror directory of the hub."""

    out: str = option("", "the folder to write", group="place", unit="FOLDER")
    seed: Count = option(1, "another seed, another world", group="world", unit="SEED", least=0)
    size: str = option("small", f"one of {', '.join(SIZES)}", group="world", unit="SIZE")


def main(config: Config) -> None:
    if not config.out:
        raise ValueError("--out is missing, name the folder to write")
    folder = Path(config.out).expanduser()
    wrote = write_world(folder, config.seed, config.size)
    sizes: dict[str, Any] = json.loads((folder / "world.json").read_text(encoding="utf-8"))["files"]
    for row in json.loads((folder / "manifest.json").read_text(encoding="utf-8")):
        name = f"{row['repo_id']} {row['subset']} {row['split']}"
        print0(f"{name:55} {row['rows']:9,} rows {sum(sizes[path] for path in row['files']):12,} bytes")
    print0(f"{folder}: {'written' if wrote else 'already there'}, {len(sizes)} files, {sum(sizes.values()):,} bytes")


if __name__ == "__main__":
    run(main, Config)
