"""Runs of scripts.base_train on a little text, forked or under torchrun, and what they leave."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from corpora import write_letters
from forks import Forked, run_module

from nanochat.checkpoint import load, manifest_hash
from nanochat.log import read_metrics
from nanochat.paths import read_json, write_json
from nanochat.tokenizer import Tokenizer

STEPS = 20
# Learning rates with little rounding.
SMALL = f"""--depth=2 --aspect-ratio=32 --head-dim=32 --max-seq-len=32 --dtype=fp32 --no-compile
    --total-batch-size=256 --device-batch-size=2 --num-iterations={STEPS} --warmup-steps=5
    --matrix-lr=0.0018 --embedding-lr=0.027 --unembedding-lr=0.0007 --scalar-lr=0.044
    --eval-bytes=2000 --eval-every=5 --save-every=3 --keep-last=0""".split()
TIMES = {"train/dt", "train/tok_per_sec", "train/mfu", "train/wait", "total_training_time"}  # of metrics.jsonl


def change_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Let a checkpoint have another manifest, as whole as before."""
    manifest = read_json(path)
    change(manifest)
    del manifest["sha256"]
    write_json(path, manifest | {"sha256": manifest_hash(manifest)})


class Base:
    """A base folder with a tokenizer; flags are added to those of SMALL, the last of two counts."""

    def __init__(self, folder: Path, files: int = 40) -> None:
        self.folder, self.text, self.jobs = folder, write_letters(folder / "letters", 30, files), 0
        tokenizer = Tokenizer.train([path.read_text(encoding="utf-8") for path in self.text.iterdir()], 300)
        tokenizer.save(folder / "tok_train/default/tokenizer.json")

    def flags(self, tag: str, *flags: str):
        return [*SMALL, f"--data={self.text}", f"--tag={tag}", *flags]

    def start(
        self,
        tag: str,
        *flags: str,
        script: str = "base_train",
        ranks: int = 1,
        before: Callable | None = None,
        **variables: str,
    ):
        """A script that trains base models, in processes of its own, where `before` is called first.

        script: its name in scripts/, or the module of a track's command.
        """
        own = [] if script == "tracks.golf.train" else ["--sample-every=-1"]
        module = script if "." in script else f"scripts.{script}"
        words = (module, *self.flags(tag, *own, *flags))
        return self.fork(run_module, before, *words, ranks=ranks, **variables)

    def fork(self, function: Callable, *arguments: Any, ranks: int = 1, **variables: str):
        """Processes that work on a function; they look into `folder`, and for the hub into its mirror there."""
        self.jobs += 1
        variables |= {"NANOCHAT_BASE_DIR": str(self.folder)}
        if (self.folder / "hub").exists():
            variables["NANOCHAT_HUB"] = str(self.folder / "hub")
        return Forked(self.folder / f"job-{self.jobs}", function, *arguments, ranks=ranks, **variables)

    def run(self, tag: str, *flags: str, **options: Any):
        """To its end; what rank 0 printed."""
        return self.start(tag, *flags, **options).done()

    def refused(self, tag: str, *flags: str, code: int = 2, **options: Any):
        """The one sentence with which it ends."""
        return self.start(tag, *flags, **options).refused(code)

    def of(self, tag: str):
        return self.folder / "base_train" / tag

    def copy(self, old: str, new: str):
        shutil.copytree(self.of(old), self.of(new), symlinks=True)
        return self.of(new)

    def metrics(self, tag: str):
        records = read_metrics(self.of(tag) / "metrics.jsonl")
        return [{name: value for name, value in record.items() if name not in TIMES} for record in records]

    def wait_for(self, tag: str, step: int) -> None:
        end = time.monotonic() + 60
        while max(self.series(tag, "train/loss"), default=-1) < step:
            assert time.monotonic() < end, f"step {step} did not come"
            time.sleep(0.002)

    def outcome(self, tag: str):
        return read_json(self.of(tag) / "outcome.json")

    def series(self, tag: str, name: str):
        """The values of a metric, by step."""
        return {record["step"]: record[name] for record in self.metrics(tag) if name in record}

    def losses(self, tag: str):
        return [*self.series(tag, "train/loss").values()]


def files_of(folder: Path, step: int = STEPS):
    """Weights and states of a checkpoint that is whole."""
    home = load(folder, step).path
    return {path.name: path.read_bytes() for path in home.glob("*.safetensors")}


class SignalAfter:
    """The process gets a signal once it has written down a step: it ends with the step after."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def __call__(self) -> None:
        from nanochat.log import MetricLog

        write = MetricLog.write

        def watched(log: MetricLog, kind: str, step: int, **metrics: Any) -> None:
            write(log, kind, step, **metrics)
            if self.step == step and "train/loss" in metrics:
                signal.raise_signal(self.number)

        MetricLog.write = watched


def impatient() -> None:
    """A second signal counts soon after the first."""
    from nanochat import runtime

    runtime.ECHO_SECONDS = 0.2


class Room:
    """So many bytes are free on the disk."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self) -> None:
        shutil.disk_usage = lambda path: SimpleNamespace(free=self.free)


class FailingSave:
    """One rank cannot write its files of a step, once: its disk is full, and then it is not."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def __call__(self) -> None:
        from nanochat import checkpoint

        write, failed = checkpoint._write_files, []

        def failing(folder: Path, files: dict[str, Any]) -> dict[str, Any]:
            is_it = f"step_{self.step:06d}" in folder.name and f"optimizer-{self.rank:05d}.safetensors" in files
            if is_it and not failed:
                failed.append(folder)
                raise OSError(28, "No space left on device")
            return write(folder, files)

        checkpoint._write_files = failing
        tell_of_saves()


def emulate_fp8() -> None:
    """Small layers compute in fp8 too, and on any device."""
    from functools import partial

    from nanochat import fp8

    fp8.convert = partial(fp8.convert, min_dim=32, emulated=True)


class OwnFolders:
    """Each rank looks for its files in a folder of its own, as ranks on several machines do."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders

    def __call__(self) -> None:
        import os

        os.chdir(self.folders[int(os.environ["RANK"])])
        os.environ["LOCAL_RANK"] = "0"


def tell_of_saves() -> None:
    """Each save prints what it is."""
    from nanochat.checkpoint import Saver

    save, amend = Saver.save, Saver.amend

    def told_save(saver: Saver, step: int, *arguments: Any) -> None:
        print(f"did: save {step}", flush=True)
        save(saver, step, *arguments)

    def told_amend(saver: Saver, *arguments: Any, **options: Any) -> None:
        print(f"did: amend {saver.step}", flush=True)
        amend(saver, *arguments, **options)

    Saver.save, Saver.amend = told_save, told_amend
