"""The curve of the stage that trains, in the terminal: redrawn as it grows, and the next stage's when that begins.

python -m scripts.watch
python -m scripts.watch --tag=d8 --stage=base_train --once
"""

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nanochat.config import option, run
from nanochat.log import MetricLog, duration, is_terminal, short
from nanochat.paths import base_dir
from nanochat.termplot import draw

HOME, BELOW, EVERYTHING = "\x1b[H", "\x1b[J", "\x1b[2J"
BUSY = 4  # times as long as a picture takes, nothing is drawn
QUIET = 60  # seconds without a step, after which that is told
RECENT = 200  # steps, whose rate is that of the time left
# Where the first of these metrics has values these are drawn, one below the other: title, unit, name -> metric.
VIEWS = {
    "rl/reward": [("reward", "of an answer", {"train": "rl/reward", "test, pass@1": "eval/pass@1"})],
    "train/loss": [
        ("loss", "nats a token", {"train": "train/loss", "validation": "val/loss"}),
        ("validation", "bits a byte", {"validation": "val/bpb"}),
    ],
}


@dataclass(frozen=True)
class Config:
    """Draw the curve of the stage that trains, until it ends if it is named, or else from stage to stage."""

    base_dir: str = option("", "folder of the run, NANOCHAT_BASE_DIR if empty", group="place", unit="FOLDER")
    tag: str = option("", "run to watch; empty: the newest", group="place")
    stage: str = option("", "stage to watch; empty: the newest, and those that follow", group="place")
    once: bool = option(False, "draw one picture and end, as it is where the output is no terminal", group="picture")
    every: float = option(1.0, "time between pictures", group="picture", unit="SECONDS", least=0.1)


def newest(base: Path, stage: str, tag: str) -> tuple[Path, list[dict]] | None:
    """The folder of the stage that trained last, and its records; of an evaluation there is no curve."""
    paths = sorted(base.glob(f"{stage or '*'}/{tag or '*'}/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in reversed(paths):
        records = [record for record in MetricLog(path.parent).read() if "step" in record]
        if any("train/loss" in record for record in records):
            return path.parent, records
    return None


def has_ended(folder: Path) -> bool:
    outcome, metrics = folder / "outcome.json", folder / "metrics.jsonl"
    return outcome.exists() and outcome.stat().st_mtime >= metrics.stat().st_mtime


def picture(folder: Path, records: list[dict], rows: int, columns: int, colored: bool) -> list[str]:
    """How it stands, and the curves."""
    steps = [record for record in records if "train/loss" in record]
    last, past = steps[-1], steps[max(0, len(steps) - RECENT)]
    parts = [f"{folder.parent.name} {folder.name}", f"step {last['step']:,} ({last['progress']:.0%})"]
    seconds, done = (last[name] - past[name] for name in ("total_training_time", "progress"))
    if has_ended(folder):
        parts.append(f"ended after {duration(last['total_training_time'])}")
    elif done > 0:
        parts.append(f"{duration(seconds / done * (1 - last['progress']))} left")
    quiet = time.time() - (folder / "metrics.jsonl").stat().st_mtime
    if quiet > QUIET and not has_ended(folder):
        parts.append(f"no step for {duration(quiet)}")
    parts += [f"loss {last['train/loss']:.4f}", f"{short(last['train/tok_per_sec'])} tok/s"]
    while len(parts) > 1 and len(" | ".join(parts)) >= columns:  # the last ones matter least
        parts.pop()
    view = next(view for metric, view in VIEWS.items() if any(metric in record for record in records))
    curves = []
    for title, unit, series in view:
        points = {
            name: [[r["step"], r[metric]] for r in records if r.get(metric) is not None]
            for name, metric in series.items()
        }
        points = {name: list(zip(*found, strict=True)) for name, found in points.items() if found}
        curves += [{"title": title, "x": "step", "y": unit, "series": points}] * bool(points)
    lines = [" | ".join(parts)[: columns - 1]]
    for curve in curves:
        lines += draw(curve, (rows - 2) // len(curves), columns - 1, colored)
    return lines


def main(config: Config) -> None:
    with suppress(KeyboardInterrupt):  # how one leaves it
        watch(config)


def watch(config: Config) -> None:
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    moving = is_terminal(sys.stdout) and not config.once
    print(end=EVERYTHING * moving)
    while True:
        began = time.monotonic()
        found, (columns, rows) = newest(base, config.stage, config.tag), shutil.get_terminal_size()
        lines = [f"no stage has begun to train below {base / config.stage / config.tag}"]
        if found:
            lines = picture(*found, rows, columns, is_terminal(sys.stdout))
        elif not moving:
            raise ValueError(f"{lines[0]}: start one, or name another --base-dir")
        # Each line clears what an older picture left behind it.
        print(HOME * moving + "".join(line + "\x1b[K" * moving + "\n" for line in lines) + BELOW * moving, end="")
        sys.stdout.flush()
        if not moving or (config.stage and found and has_ended(found[0])):
            return
        time.sleep(max(config.every, BUSY * (time.monotonic() - began)))


if __name__ == "__main__":
    run(main, Config)
