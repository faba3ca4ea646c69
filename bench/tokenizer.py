"""Our tokenizer core and its peers, in turn in one run: training, encoding fresh text, and extreme strings.

    python -m bench.tokenizer --data FOLDER --peers ENVIRONMENT[,ENVIRONMENT...]

Each measurement is a fresh process of the environment under test (ours: this interpreter), so that nothing is warm and
peak memory is the peer's own. What each peer is asked stands in `tokenizer_peers.py`. A ratio over 1 means ours is
better. README.md says how to make the environments.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import tokenizer_peers
from bench.tokenizer_peers import VOCABULARIES, WORKS, Job

GROUPS = ("train", "encode", "extreme")
LIMIT = 1800  # seconds a process may take, its own start included
EXTREME_LIMIT = 60
EXTREME_LENGTH = 1_000_000  # characters
CELL = 44  # columns of the terminal for one case; the whole of a longer failure is on stderr


class Outcome(NamedTuple):
    """All runs of one peer in one case; `failure` says why there are none."""

    runs: list[dict]
    failure: str = ""

    def median(self, key: str) -> float:
        return statistics.median(run[key] for run in self.runs)

    def best(self, key: str) -> float:
        return min(run[key] for run in self.runs)


class Case(NamedTuple):
    group: str
    name: str
    unit: str  # of the speed: "s", or "MB/s"
    job: Job
    size: int  # bytes of text
    limit: int = LIMIT

    def speed(self, seconds: float) -> float:
        return self.size / 1e6 / seconds if self.unit == "MB/s" else seconds


# ---- running ----


def run_child(python: str, job: Job, limit: int = LIMIT) -> dict | str:
    """What the child wrote, or a short reason why it wrote nothing."""
    parallel = "true" if job.threads > 1 else "false"
    environment = os.environ | {"RAYON_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": parallel}
    # -I: two packages are called rustbpe, and a PYTHONPATH with ours would hide the other.
    command = [python, "-I", tokenizer_peers.__file__, json.dumps(job)]
    Path(job.result).unlink(missing_ok=True)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=limit)
    except FileNotFoundError:
        return f"no interpreter {python}"
    except subprocess.TimeoutExpired:
        return f"over {limit} s" if Path(job.result).exists() else f"not ready to start in {limit} s"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        return (done.stderr.decode(errors="replace").strip().splitlines() or ["failed without a word"])[-1]
    return json.loads(Path(job.result).read_text())


def run_case(case: Case, pythons: dict[str, str], repeats: int) -> dict[str, Outcome]:
    """Every peer in turn, `repeats` times over; one that failed is not asked again."""
    outcomes = {name: Outcome([], "" if name in pythons else "not installed") for name in WORKS[case.job.work]}
    for repeat, name in itertools.product(range(repeats), outcomes):
        if outcomes[name].failure:
            continue
        found = run_child(pythons[name], case.job._replace(name=name), case.limit)
        if isinstance(found, dict):
            outcomes[name].runs.append(found)
        else:
            outcomes[name] = Outcome([], found)
        said = f"{found['seconds']:.3f} s" if isinstance(found, dict) else found
        print(f"{case.group}, {case.name}, {repeat + 1} of {repeats}, {name}: {said}", file=sys.stderr, flush=True)
    return outcomes


def find_pythons(environments: list[str], job: Job) -> dict[str, dict[str, str]]:
    """For each work, the interpreter of every peer that is installed. Prints the versions found."""
    pythons = {
        work: {name: sys.executable for name, peer in peers.items() if peer.ours} for work, peers in WORKS.items()
    }
    for environment in environments:
        python = str(Path(environment).absolute() / "bin" / "python")
        packages = run_child(python, job._replace(work="versions"))
        if isinstance(packages, str):
            raise ValueError(f"--peers {environment}: {packages}; make it as bench/README.md says")
        wanted = {peer.package for peers in WORKS.values() for peer in peers.values()}
        print(f"{environment}: " + ", ".join(f"{name} {packages[name]}" for name in sorted(wanted & packages.keys())))
        for work, peers in WORKS.items():
            pythons[work] |= {
                name: python for name, peer in peers.items() if peer.package in packages and not peer.ours
            }
    return pythons


# ---- cases ----


def write_corpus(data: Path, size: int, target: Path) -> int:
    """The first documents of the parquet files in `data`, up to `size` bytes, in one file; the bytes they have."""
    import pyarrow
    from pyarrow import compute, parquet

    files = sorted(data.glob("*.parquet"))
    if not files:
        raise ValueError(f"--data {data}: give a folder of parquet files with a column `text`")
    table = pyarrow.concat_tables(parquet.read_table(file, columns=["text"]) for file in files)
    ends = compute.cumulative_sum(compute.binary_length(table["text"]).cast("int64"))
    documents = compute.sum(compute.less_equal(ends, size)).as_py()
    if not documents:
        raise ValueError(f"--megabytes: the first document alone has {ends[0].as_py() / 1e6:.1f} MB; give more")
    parquet.write_table(table.slice(0, documents), target, row_group_size=1024)
    return ends[documents - 1].as_py()


def extreme_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and parquet files of one long string each."""
    import pyarrow
    from pyarrow import parquet

    chance = random.Random(0)
    texts = {
        "equal letters": "a" * EXTREME_LENGTH,
        "random letters": "".join(chance.choices(string.ascii_lowercase, k=EXTREME_LENGTH)),
        "spaces": " " * EXTREME_LENGTH,
        "punctuation": "".join(chance.choices(string.punctuation, k=EXTREME_LENGTH)),
    }
    for name, text in texts.items():
        path = str(folder / f"{name}.parquet")
        parquet.write_table(pyarrow.table({"text": [text]}), path)
        yield name, path


def with_vocabulary(name: str, job: Job, folder: Path) -> Iterator[Job]:
    """The job to encode with that vocabulary; none, and the reason printed, where it cannot be had."""
    ranks = str(folder / f"{name}.tiktoken")
    made = run_child(sys.executable, job._replace(work=name, ranks=ranks))
    if isinstance(made, dict):
        yield job._replace(work="encode", ranks=ranks, pattern=made["pattern"])
    else:
        print(f"\nencoding with {name} is left out: {made}")


def plan(options: argparse.Namespace, job: Job, folder: Path, size: int) -> Iterator[Case]:
    job = job._replace(threads=max(options.threads), vocab=options.vocab[0])
    if "train" in options.what:
        for vocab in options.vocab:
            yield Case("train", f"{vocab} tokens", "s", job._replace(work="train", vocab=vocab), size)
    if "encode" in options.what:
        for encode, threads in itertools.product(with_vocabulary("cl100k_base", job, folder), options.threads):
            yield Case("encode", f"cl100k_base, threads: {threads}", "MB/s", encode._replace(threads=threads), size)
        for encode in with_vocabulary("nanochat", job, folder):
            yield Case("encode", f"{job.vocab} of ours, threads: {job.threads}", "MB/s", encode, size)
    if "extreme" in options.what:
        # Both patterns: where one of them saves a peer's regex engine from a long run of spaces, the other does not.
        works = [job._replace(work="train")]
        works += [encode for name in VOCABULARIES for encode in with_vocabulary(name, job, folder)]
        for work, (name, path) in itertools.product(works, extreme_texts(folder)):
            group = f"extreme, {work.work} {Path(work.ranks).stem}".rstrip()
            yield Case(group, name, "s", work._replace(texts=path), EXTREME_LENGTH, EXTREME_LIMIT)


# ---- tables ----

CHECKED_AGAINST = ("tiktoken", "tokenizers", "fastokens", "gigatoken")  # the first that answered
Results = list[tuple[Case, dict[str, Outcome]]]


def ratio(ours: Outcome, peer: Outcome, key: str) -> float | None:
    """How many times less of it ours needs."""
    return None if ours.failure or peer.failure else peer.median(key) / ours.median(key)


def verdict(case: Case, outcomes: dict[str, Outcome], name: str) -> str:
    """What keeps this row from being compared as it stands; empty where nothing does."""
    run = outcomes[name].runs[0]
    if "merges" in run:  # who learns less is done sooner
        return "" if run["merges"] == case.job.vocab - 256 else f"{run['merges']} merges"
    if "ids" not in run:
        return "own vocabulary"
    reference = next((outcomes[peer].runs[0] for peer in CHECKED_AGAINST if outcomes[peer].runs), None)
    if reference is None:
        return "ids unchecked"
    return "" if run["ids"] == reference["ids"] else "ids differ"


def short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.3f}"


def cell(case: Case, outcomes: dict[str, Outcome], name: str) -> str:
    outcome, ours = outcomes[name], outcomes["ours"]
    if outcome.failure:
        return outcome.failure if len(outcome.failure) <= CELL else outcome.failure[: CELL - 1] + "…"
    ratios = [ratio(ours, outcome, key) for key in ("seconds", "memory")]
    faster, leaner = ("" if value is None else f"{value:.2f}x" for value in ratios)
    speed, best = (short(case.speed(seconds)) for seconds in (outcome.median("seconds"), outcome.best("seconds")))
    shown = f"{speed:>5} ({best:>5}) {case.unit} {faster:>6}"
    if not case.group.startswith("extreme"):
        shown += f" {outcome.median('memory') / 1e6:6.0f} MB {leaner:>5}"
    return f"{shown} {verdict(case, outcomes, name)}".rstrip()


def print_table(group: str, results: Results) -> None:
    """One row a peer, ours first; one column a case: median (best) speed, ratio, peak memory, ratio."""
    names = list(WORKS[results[0][0].job.work])
    columns = [[group, *names]]
    columns += [[case.name, *(cell(case, outcomes, name) for name in names)] for case, outcomes in results]
    widths = [max(map(len, column)) for column in columns]
    print()
    for row in zip(*columns, strict=True):
        print("   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def records(results: Results) -> Iterator[dict]:
    """What HOUSE.md asks of every benchmark; `peer` and `ratio` are null where the peer did not answer."""
    for case, outcomes in results:
        ours, names = outcomes["ours"], [name for name in outcomes if name != "ours"]
        for name, key in itertools.product(names, ("seconds", "memory")):
            peer = outcomes[name]
            unit, of = ("MB", lambda value: value / 1e6) if key == "memory" else (case.unit, case.speed)
            yield {
                "case": f"{case.group}, {case.name}: {'peak memory' if key == 'memory' else 'speed'}",
                "unit": unit,
                "ours": None if ours.failure else of(ours.median(key)),
                "peer": None if peer.failure else of(peer.median(key)),
                "peer_name": name,
                "ratio": ratio(ours, peer, key),
            }


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m bench.tokenizer", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of parquet files with a column `text`")
    parser.add_argument("--peers", default="", help="environments of the peers, separated by commas")
    parser.add_argument("--what", default=",".join(GROUPS), help="groups to measure (default: %(default)s)")
    parser.add_argument(
        "--vocab", type=numbers, default=[32768, 65536], help="sizes to train to, without special tokens"
    )
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="to encode with; training takes the most")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement; medians are shown")
    parser.add_argument("--megabytes", type=float, default=100, help="text to train on and to encode")
    parser.add_argument("--json", type=Path, help="file to write all figures to")
    options = parser.parse_args(arguments)
    options.what = options.what.split(",")
    if unknown := set(options.what) - set(GROUPS):
        parser.error(f"--what: no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = str(folder / "corpus.parquet")
        size = write_corpus(options.data, int(options.megabytes * 1e6), Path(corpus))
        job = Job("pattern", str(folder / "result.json"), texts=corpus, corpus=corpus)
        answer = run_child(sys.executable, job)
        if isinstance(answer, str):
            raise ValueError(f"our rustbpe cannot be used here ({answer}); build it with `bash runs/setup.sh`")
        pythons = find_pythons(list(filter(None, options.peers.split(","))), job)
        load = f"load before the start: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"  # others' work spoils ours
        print(f"{size / 1e6:.1f} MB of text; speed is a median of {options.repeats} (in brackets the best); {load}")
        results: Results = []
        for group, cases in itertools.groupby(plan(options, job._replace(**answer), folder, size), lambda c: c.group):
            found = [(case, run_case(case, pythons[case.job.work], options.repeats)) for case in cases]
            print_table(group, found)
            results += found
    for work, peers in WORKS.items():
        print("", *(f"{work}, {name}: {peer.note}" for name, peer in peers.items() if peer.note), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(list(records(results)), indent=1) + "\n")


if __name__ == "__main__":
    main()
