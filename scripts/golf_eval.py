"""Score a golf entry's artifact in a process of its own, in the sandbox; or compare entries over seeds.

python -m scripts.golf_eval --tag=golf-1
python -m scripts.golf_eval --tag=golf --entries=golf,golf-without-smear --seeds=3
"""

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nanochat.config import Count, option, options, run
from nanochat.lab.golf import (
    BASELINES,
    PHASES,
    SCALES,
    Result,
    check_comparable,
    check_size,
    means,
    results_table,
    scale_of,
)
from nanochat.log import Record, metric_curve, print0, read_metrics, table_of, terminal_table
from nanochat.outcome import Outcome, measured, read_outcomes
from nanochat.paths import base_dir, read_sha256, stage_dir, write_json
from nanochat.settings import TagSettings

ROOT = Path(__file__).parent.parent
STAGE = "golf_eval"
SHORTEST = 8  # tokens; strides are the context halved, down to this
MARGIN = 2.0  # allowed time over the estimate: the machine may become busy
OF_PACKING = (  # metrics that the card repeats
    "bpb before quantization",
    "Steps",
    "Tokens",
    "Parameters",
    "Bits per parameter",
    "Compression ratio",
    "Tokenizer",
)
MEMORY = 2**36  # address space of the scoring process; the libraries reserve far more than they use


@options("score")
class Config(TagSettings):
    """Score an artifact, or compare a series of entries."""

    tag = "golf"
    stride: str = option(
        "auto", "tokens from row to row (0: rows do not overlap; auto: the scale's, or more if it does not fit)"
    )
    rows: Count = option(8, "rows at once", least=1)
    banded: bool = option(True, "also score with one pass over long rows, as another score")
    eval_bytes: Count = option(0, "bytes of validation text (0: the scale's)")
    scoring_seconds: float = option(0.0, "limit for the scoring process (0: the scale's)")
    budget: Count = option(0, "bytes of model and code (0: the scale's)")
    count_tokenizer: bool = option(False, "count the vocabulary's bytes too")
    unsafe_exec: bool = option(False, "score without a sandbox where there can be none")
    entries: str = option(
        "", "compare the runs TAG-ENTRY-SEED of these entries, the first one with the rest", group="series"
    )
    seeds: Count = option(3, "seeds of the series", group="series", least=1)
    best: bool = option(False, "only print the best baseline of the series", group="series", in_card=False)
    check: str = option("", "only check that artifacts of this scale can be scored here", group="series", in_card=False)


# Runs in the sandbox, or on a GPU: paths, then the words of the command line.
PROGRAM = """
import sys
from runpy import run_module
sys.path[:0] = {paths!r}
sys.argv = {words!r}
run_module("nanochat.golf", run_name="__main__", alter_sys=True)
"""


def find_sandbox(device: str, unsafe: bool) -> str:
    """Return for the card if the scoring process has a sandbox; ValueError if it needs one that this system lacks."""
    from nanochat.evals import sandbox

    if device != "cpu":
        return "no, on a GPU"
    sandbox.require(unsafe)
    return "no" if sandbox.missing() else "yes"


def scoring_words(folder: str, config: Config, device: str, stride: int, *flags: str) -> list[str]:
    """Return the command line of the scoring process, in fp32; folder: has the artifact and the text."""
    words = ["golf", f"{folder}/artifact", f"{folder}/text", f"--stride={stride}", f"--rows={config.rows}"]
    return [*words, f"--seconds={config.scoring_seconds}", f"--device={device}", *flags]


def score(folder: str, config: Config, device: str, stride: int, *flags: str) -> Record:
    """Return the result of the scoring process, which reads a copy of the artifact and the text, nothing else of ours.

    On a GPU it is a plain process. folder: a real path, as the sandbox has no symbolic links.
    """
    from nanochat.evals import sandbox

    root, *packages = map(os.path.realpath, (ROOT, *site.getsitepackages()))
    words = scoring_words(folder, config, device, stride, *flags)
    program = PROGRAM.format(paths=[root, *packages], words=words)
    if device == "cpu":
        seconds = config.scoring_seconds + 60
        limits = sandbox.Limits(seconds=seconds, cpu_seconds=int(64 * seconds), memory=MEMORY, processes=256)
        # PyTorch asks the system for its processors.
        readable = [f"{root}/nanochat", *packages, folder, "/sys/devices/system/cpu"]
        verdict = sandbox.run(program, limits, config.unsafe_exec, readable)
    else:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        verdict = sandbox.Verdict(done.returncode == 0, done.stderr + done.stdout)
    *_, last = verdict.output.strip().splitlines() or ["the scoring process ended and printed nothing"]
    if not verdict.passed:
        raise ValueError(last.removeprefix("error: "))
    return json.loads(last)


def choose_stride(config: Config, plain: Record, least: int) -> int:
    """Print the cost of each stride, by the pass without overlap; return the one asked for, or the first that fits.

    least: the shortest that auto takes.
    """
    from nanochat.golf import row_count

    context, row = plain["stride"], plain["seconds of the model"] / plain["rows"]
    rows, chosen, stride = [], context, context
    while stride >= SHORTEST:
        cost = plain["seconds"] + row * (row_count(plain["tokens"], context, stride) - plain["rows"])
        fits = MARGIN * cost <= config.scoring_seconds
        rows.append([stride, cost, "yes" if fits else "no"])
        if fits and stride >= least:
            chosen = stride
        stride //= 2
    title = (
        f"Cost of each stride, from measured speed; it fits if twice that is within {config.scoring_seconds:g} seconds"
    )
    print0(terminal_table(table_of(title, "Stride | Seconds:,.1f | Fits", rows)))
    if config.stride == "auto":
        return chosen
    if not config.stride.isdecimal():
        raise ValueError(f"--stride={config.stride} has to be auto or a number of tokens")
    return int(config.stride) or context


def record_of(path: Path) -> Outcome:
    """Return the record of an artifact that golf_pack has finished; ValueError for any other file."""
    record = path.with_name("outcome.json")
    made = Outcome.load(record) if path.exists() and record.exists() else None
    if not made or made.artifacts.get(path.name) != read_sha256(path):
        raise ValueError(f"there is no finished artifact at {path}: python -m scripts.golf_pack makes one")
    return made


def evaluate(config: Config) -> None:
    """Score one artifact, and write the outcome."""
    from nanochat.data.corpus import open_corpus
    from nanochat.evals.bpb import first_documents

    outcome = Outcome.begin(STAGE, config.tag, config)
    path = stage_dir("golf_pack", config.tag) / "artifact.golf"
    made = record_of(path)
    packed = made.metrics
    before = packed["bpb before quantization"]["value"] if made.config["eval_bytes"] == config.eval_bytes else None
    scale = SCALES[packed["Scale"]]
    contained = find_sandbox(scale.device, config.unsafe_exec)
    limit = config.scoring_seconds or scale.scoring
    config = replace(config, scoring_seconds=limit)
    budget = config.budget or scale.bytes
    corpus = open_corpus(packed["Data"], packed.get("Shards", 0))  # older records have no shards
    with tempfile.TemporaryDirectory(prefix="golf-") as temporary:
        folder = os.path.realpath(temporary)
        os.chmod(folder, 0o755)
        shutil.copy(path, f"{folder}/artifact")
        write_json(Path(folder, "text"), first_documents(corpus.batches("val"), config.eval_bytes or scale.eval_bytes))
        plain = score(folder, config, scale.device, 0)
        groups = plain["groups"] | {"code": sum(plain["sources"].values())}
        apart = {} if config.count_tokenizer else {"tokenizer (not counted)": groups.pop("tokenizer")}
        counted = check_size(groups, budget)
        stride = choose_stride(config, plain, scale.stride)
        started = time.monotonic()
        sliding = score(folder, config, scale.device, stride)
        spent = time.monotonic() - started
        if spent > limit:
            raise ValueError(f"scoring took {spent:.1f} s, over the limit of {limit:g} s: take a longer --stride")
        banded = score(folder, config, scale.device, 0, "--banded")["bpb"] if config.banded else None
    outcome.metrics = {
        "bpb": measured(sliding["bpb"]),
        "Stride": stride,
        "bpb, rows that do not overlap": measured(plain["bpb"]),
        "bpb, banded (another score)": measured(banded),
        "Quantization gap": measured(None if before is None else plain["bpb"] - before),
        "Bytes": counted,
        "Budget": budget,
        "Scoring seconds": measured(spent, spec=".1f"),
        "Scoring device": scale.device,
        "Sandbox": contained,
        "Artifact": sliding["artifact"][:12],
        "Text": sliding["text"][:12],
    }
    outcome.metrics |= {name: packed[name] for name in OF_PACKING}
    outcome.tables = [
        table_of("Bytes", "Group | Bytes:,d", list((groups | apart).items())),
        table_of("Code of the scoring process", "File | Bytes:,d", list(plain["sources"].items())),
    ]
    print0(
        f"golf_eval: {counted:,} of {budget:,} bytes\n"
        f"final_mixed_quant_roundtrip val_loss:{sliding['loss']:.8f} val_bpb:{sliding['bpb']:.8f}"
        f" stride:{stride} eval_time:{1000 * spent:.0f}ms"
    )
    outcome.write()


def read_result(config: Config, entry: str) -> Result:
    """Return the scores of an entry over the seeds that it has; ValueError if one is not that of the packed file."""
    seeds, tables = [], []
    for seed in range(1, config.seeds + 1):
        tag = f"{config.tag}-{entry}-{seed}"
        found = {outcome.stage: outcome for outcome in read_outcomes(base_dir(), tag)}
        scored, packed = found.get(STAGE), found.get("golf_pack")
        if scored is None and packed is None:
            continue
        if not (scored and packed) or packed.artifacts["artifact.golf"][:12] != scored.metrics["Artifact"]:
            raise ValueError(f"{tag} has a packed file that is not scored: run scripts.golf_eval for it")
        seeds.append(scored.metrics | {name: packed.metrics[name] for name in (*PHASES, "Scale")})
        tables = tables or scored.tables + packed.tables
    if not seeds:
        raise ValueError(f"{config.tag}-{entry}-1 is not scored: bash runs/golf.sh scores all entries")
    return Result(entry, seeds, tables)


def read_baselines(config: Config) -> tuple[Result, list[Result]]:
    """Return the best baseline, by the first seed, which all have, and all of them."""
    baselines = [read_result(config, entry) for entry in BASELINES]
    return min(baselines, key=lambda baseline: baseline.values("bpb")[0]), baselines


def compare(config: Config) -> None:
    """Write the outcome of a series: the first of its entries against the best of the baselines, and the ablation."""
    outcome = Outcome.begin(STAGE, config.tag, config)
    own, *others = [read_result(config, entry) for entry in config.entries.split(",")]
    best, baselines = read_baselines(config)
    check_comparable(config.tag, [own, *others, *baselines])
    difference, p = own.against(best)
    outcome.metrics = {
        "Entry": own.name,
        "Seeds": len(own.seeds),
        "Baseline": best.name,
        "Baseline minus entry": measured(None if difference is None else -difference),
        "p": measured(p, spec=".2g"),
        **means(own),
        "Scale": SCALES[own.seeds[0]["Scale"]].description,
    }
    rows = {result.name: result for result in (own, *baselines)}  # own may be one of them
    outcome.tables = [results_table("Entries, against the best baseline", list(rows.values()), best)]
    if others:
        outcome.tables.append(results_table(f"{own.name} without a trick each, against it", [own, *others], own))
    outcome.show()
    outcome.tables += own.tables
    # Bytes by group, as shares of the budget, and validation over the clock, both of the first seed.
    budget = own.seeds[0]["Budget"]
    bars = {group: [size / budget, 0.0, f"{size:,}"] for group, size in own.tables[0]["rows"]}
    clock = {"title": "Validation over the clock, first seed", "x": "seconds", "y": "bits per byte", "series": {}}
    for entry in (own.name, best.name):
        records = read_metrics(stage_dir("base_train", f"{config.tag}-{entry}-1") / "metrics.jsonl")
        clock["series"][entry] = metric_curve(records, "val/bpb", over="total_training_time")
    outcome.curves = [{"title": f"Bytes by group, of {budget:,}", "bars": bars}, clock]
    outcome.write()


def main(config: Config) -> None:
    if config.check:
        find_sandbox(scale_of(config.check).device, config.unsafe_exec)
    elif config.best:
        # Later seeds of a series that was stopped may not be scored yet.
        print0(read_baselines(replace(config, seeds=1))[0].name)
    elif config.entries:
        compare(config)
    else:
        evaluate(config)


if __name__ == "__main__":
    run(main, Config)
