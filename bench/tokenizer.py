"""Our tokenizer core and its peers, in turn in one run: training, encoding fresh text, and extreme strings.

    python -m bench.tokenizer --data FOLDER --peers ENVIRONMENT[,ENVIRONMENT...]

Each measurement is a fresh process of the environment under test (ours: this interpreter), so that nothing is warm and
peak memory is the peer's own. What each peer is asked stands in `tokenizer_peers.py`. README.md says how to make the
environments.
"""

import argparse
import itertools
import random
import string
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from bench.common import Figure, compare, in_child, parser_of
from bench.findings import Findings
from bench.tokenizer_peers import VOCABULARIES, WORKS, Job, measure, versions
from nanochat.errors import UserError

GROUPS = ("train", "encode", "extreme")
LIMIT = 1800  # seconds a process may take, its own start included
EXTREME_LIMIT = 60
EXTREME_LENGTH = 1_000_000  # characters
SECONDS = Figure("seconds", "s", shown=".3f")
MEMORY = Figure("memory", "MB", shown=",.0f")
SPEED = Figure("speed", "MB/s", less_is_better=False, shown=".1f")


@dataclass(frozen=True)
class Case:
    name: str
    work: str  # a key of WORKS
    job: Job
    size: int  # bytes of text
    limit: int = LIMIT


def find_pythons(environments: list[str]):
    """The interpreter of every package that is installed for a peer. Prints the versions found."""
    packages = {peer.package for peers in WORKS.values() for peer in peers.values()}
    pythons = {}
    for environment in environments:
        python = str(Path(environment).absolute() / "bin" / "python")
        if not Path(python).exists():
            raise UserError(f"--peers {environment}: no interpreter {python}; make it as bench/README.md says")
        found = in_child(versions, python=python)
        names = sorted(packages & found.keys())
        print(environment, *(f"{name} {found[name]}" for name in names), sep=", ")
        pythons |= dict.fromkeys(names, python)
    return pythons


def run_case(findings: Findings, case: Case, pythons: dict[str, str], repeats: int) -> None:
    threads = case.job.threads
    env = {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}

    def run(name: str, _: int):
        package = WORKS[case.work][name].package
        python = sys.executable if name.startswith("ours") else pythons.get(package)
        if not python:
            return {"failure": "not installed"}
        answer = in_child(measure, case.work, name, asdict(case.job), python=python, env=env, limit=case.limit)
        return answer if "failure" in answer else answer | {"speed": case.size / 1e6 / answer["seconds"]}

    def verdict(found: dict[str, list[dict]], name: str):
        """What keeps this row from being compared as it stands; empty where nothing does."""
        its = found[name][0]
        if "merges" in its:  # who learns less is done sooner
            return "" if its["merges"] == case.job.vocab - 256 else f"{its['merges']} merges"
        if "ids" not in its:
            return "own vocabulary"
        right = found["tiktoken"][0].get("ids")
        return "ids unchecked" if right is None else "" if its["ids"] == right else "ids differ"

    speed = SPEED if case.work == "encode" and case.limit == LIMIT else SECONDS
    runs = {name: partial(run, name) for name in WORKS[case.work]}
    compare(findings, case.name, runs, [speed, MEMORY], repeats, verdict)


def first_documents(data: Path, megabytes: float):
    """Table of the first documents of the parquet files in `data`, up to that size, and the bytes they have."""
    import pyarrow
    from pyarrow import compute, parquet

    files = sorted(Path(data).glob("*.parquet"))
    if not files:
        raise UserError(f"--data {data}: give a folder of parquet files with a column `text`")
    table = pyarrow.concat_tables(parquet.read_table(file, columns=["text"]) for file in files)
    ends = compute.cumulative_sum(compute.binary_length(table["text"]).cast("int64"))
    count = compute.sum(compute.less_equal(ends, int(megabytes * 1e6))).as_py()
    if not count:
        raise UserError(f"--megabytes: the first document alone has {ends[0].as_py() / 1e6:.1f} MB; give more")
    return table.slice(0, count), ends[count - 1].as_py()


def extreme_texts(folder: Path):
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


def plan(options: argparse.Namespace, job: Job, folder: Path, size: int):
    if "train" in options.what:
        for vocab in options.vocab:
            yield Case(f"train, {vocab} tokens", "train", replace(job, vocab=vocab), size)
    encoding = {}  # vocabulary -> job
    for name, make in VOCABULARIES.items() if {"encode", "extreme"} & {*options.what} else ():
        ranks = str(folder / f"{name}.tiktoken")
        made = in_child(make, job.corpus, job.vocab, ranks)
        if "failure" in made:
            print(f"\nencoding with {name} is left out: {made['failure']}")
        else:
            encoding[name] = replace(job, ranks=ranks, pattern=made["pattern"])
    if "encode" in options.what:
        for name, its in encoding.items():
            for threads in options.threads if name == "cl100k_base" else [job.threads]:
                what = f"{job.vocab} of ours" if name == "nanochat" else name
                yield Case(f"encode, {what}, threads: {threads}", "encode", replace(its, threads=threads), size)
    if "extreme" in options.what:
        # Both patterns: where one of them saves a peer's regex engine from a long run of spaces, the other does not.
        works = [("train", "", job), *(("encode", f" {name}", its) for name, its in encoding.items())]
        for (work, name, its), (text, path) in itertools.product(works, extreme_texts(folder)):
            its = replace(its, texts=path)
            yield Case(f"extreme, {work}{name}, {text}", work, its, EXTREME_LENGTH, EXTREME_LIMIT)


def parse_options():
    parser = parser_of("tokenizer", __doc__, repeats=3)
    parser.add_argument("--data", type=Path, required=True, help="folder of parquet files with a column `text`")
    parser.add_argument("--peers", default="", help="environments of the peers, separated by commas")
    parser.add_argument("--what", nargs="+", choices=GROUPS, default=GROUPS, help="groups to measure (default: all)")
    parser.add_argument("--vocab", type=int, nargs="+", default=[32768, 65536], help="sizes, special tokens apart")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="training takes the most")
    parser.add_argument("--megabytes", type=float, default=100, help="text to train on and to encode")
    return parser.parse_args()


def main() -> None:
    from pyarrow import parquet

    from rustbpe import DEFAULT_PATTERN

    options = parse_options()
    findings = Findings("tokenizer", options.json)
    pythons = find_pythons(list(filter(None, options.peers.split(","))))
    with tempfile.TemporaryDirectory() as folder:
        corpus = str(Path(folder, "corpus.parquet"))
        table, size = first_documents(options.data, options.megabytes)
        parquet.write_table(table, corpus, row_group_size=1024)
        print(f"{size / 1e6:.1f} MB of text")
        job = Job(corpus, corpus, DEFAULT_PATTERN, max(options.threads), options.vocab[0])
        cases = plan(options, job, Path(folder), size)
        for case in cases:
            run_case(findings, case, pythons, options.repeats)
    notes = (
        f"{work}, {name}: {peer.note}" for work, peers in WORKS.items() for name, peer in peers.items() if peer.note
    )
    print("", *notes, sep="\n")
    findings.finish()


if __name__ == "__main__":
    main()
