"""Score a golf entry's artifact in a process of its own, in the sandbox; or compare entries over seeds.

python -m scripts.golf_eval --tag=golf-1
python -m scripts.golf_eval --tag=golf --entries=golf,golf-without-smear --seeds=3
"""

import json
import os
import shutil
import site
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import Count, option, options, run
from nanochat.lab.golf import PHASES, SCALES, Result, check_comparable, check_size, means, results_table, scale_of
from nanochat.log import Record, format_value, metric_curve, print0, read_metrics, table_of, terminal_table
from nanochat.outcome import Outcome, measured, read_outcomes
from nanochat.paths import base_dir, read_sha256, stage_dir, write_json
from nanochat.settings import TagSettings

if TYPE_CHECKING:
    from nanochat.artifact import Artifact

ROOT = Path(__file__).parent.parent
STAGE = "golf_eval"
TRIAL_BYTES = 20_000  # of text, to measure the speed
SHORTEST = 8  # tokens; strides are the context halved, down to this
MARGIN = 2.0  # allowed time over the estimate: the machine may become busy
OF_PACKING = ("bpb before quantization", "Steps", "Tokens", "Parameters", "Bits per parameter", "Compression ratio")
OF_PACKING += ("Tokenizer",)  # metrics that the card repeats
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
    scale: str = option(
        "embedded", "budget and baselines of the series (a single artifact has its own)", group="series"
    )
    best: bool = option(False, "only print the best baseline of the series", group="series", in_card=False)


# Runs in the sandbox: paths, then the words of the command line.
PROGRAM = """
import sys
from runpy import run_module
sys.path[:0] = {paths!r}
sys.argv = {words!r}
run_module("nanochat.golf", run_name="__main__", alter_sys=True)
"""


def score(folder: str, config: Config, text: str, stride: int, *flags: str) -> Record:
    """Return the result of the scoring process, which reads a copy of the artifact and the text, nothing else of ours.

    folder: has the artifact and the text.
    """
    from nanochat.evals import sandbox

    words = ["golf", f"{folder}/artifact", f"{folder}/{text}", f"--stride={stride}", f"--rows={config.rows}", *flags]
    words.append(f"--seconds={config.scoring_seconds}")
    packages, seconds = site.getsitepackages(), config.scoring_seconds + 60
    program = PROGRAM.format(paths=[str(ROOT), *packages], words=words)
    limits = sandbox.Limits(seconds=seconds, cpu_seconds=int(64 * seconds), memory=MEMORY, processes=256)
    # PyTorch asks the system for its processors.
    readable = [f"{ROOT}/nanochat", *packages, folder, "/sys/devices/system/cpu"]
    verdict = sandbox.run(program, limits, config.unsafe_exec, readable)
    *_, last = verdict.output.strip().splitlines() or ["the scoring process ended and printed nothing"]
    if not verdict.passed:
        raise ValueError(last.removeprefix("error: "))
    return json.loads(last)


def choose_stride(config: Config, trial: Record, context: int, tokens: int, least: int) -> int:
    """Print the cost of each stride, from a trial; return the one asked for, or the first from `least` that fits."""
    from nanochat.golf import row_count

    row = trial["seconds of the model"] / trial["rows"]
    rows, chosen, stride = [], context, context
    while stride >= SHORTEST:
        cost = trial["seconds"] + row * (row_count(tokens, context, stride) - trial["rows"])
        fits = MARGIN * cost <= config.scoring_seconds
        rows.append([stride, cost, "yes" if fits else "no"])
        if fits and stride >= least:
            chosen = stride
        stride //= 2
    title = (
        f"Cost of each stride, from measured speed; it fits if twice that is within {config.scoring_seconds:g} seconds"
    )
    print0(terminal_table(table_of(title, {"Stride": "", "Seconds": ",.1f", "Fits": ""}, rows)))
    if config.stride == "auto":
        return chosen
    if not config.stride.isdecimal():
        raise ValueError(f"--stride={config.stride} has to be auto or a number of tokens")
    return int(config.stride) or context


def open_packed(path: Path) -> "tuple[Artifact, Outcome]":
    """Return the content of the file that golf_pack has finished, and its record; ValueError for any other file."""
    from nanochat.artifact import read_artifact
    from nanochat.gpt import GPTConfig

    record = path.with_name("outcome.json")
    made = Outcome.load(record) if path.exists() and record.exists() else None
    if not made or made.artifacts.get(path.name) != read_sha256(path):
        raise ValueError(f"there is no finished artifact at {path}: python -m scripts.golf_pack makes one")
    artifact = read_artifact(path.read_bytes())
    size = 256 + len(artifact.vocabulary["merges"]) + len(artifact.vocabulary["special_tokens"])
    trained = GPTConfig(**artifact.config).vocab_size
    if size != trained:
        raise ValueError(f"the artifact's tokenizer has {size:,} tokens, but its model {trained:,}: pack it again")
    return artifact, made


def evaluate(config: Config) -> None:
    """Score one artifact, and write the outcome."""
    from nanochat.data.corpus import open_corpus
    from nanochat.evals.bpb import first_documents

    outcome = Outcome.begin(STAGE, config.tag, config)
    path = stage_dir("golf_pack", config.tag) / "artifact.golf"
    artifact, made = open_packed(path)
    packed = made.metrics
    before = packed["bpb before quantization"]["value"] if made.config["eval_bytes"] == config.eval_bytes else None
    scale = SCALES[packed["Scale"]]
    limit = config.scoring_seconds or scale.scoring
    config = replace(config, scoring_seconds=limit)
    context, budget = artifact.config["max_seq_len"], config.budget or scale.bytes
    corpus, size = open_corpus(packed["Data"]), config.eval_bytes or scale.eval_bytes
    with tempfile.TemporaryDirectory(prefix="golf-") as folder:
        os.chmod(folder, 0o755)
        shutil.copy(path, f"{folder}/artifact")
        documents = first_documents(corpus.batches("val"), size)
        write_json(Path(folder, "text"), documents)
        write_json(Path(folder, "trial"), first_documents(corpus.batches("val"), min(size, TRIAL_BYTES)))
        trial = score(folder, config, "trial", context)
        groups = artifact.bytes | {"code": sum(trial["sources"].values())}
        counted = check_size(groups, budget, config.count_tokenizer)
        tokens = trial["tokens"] * sum(len(document.encode()) for document in documents) // trial["bytes"]
        stride = choose_stride(config, trial, context, tokens, scale.stride)
        started = time.monotonic()
        sliding = score(folder, config, "text", stride)
        spent = time.monotonic() - started
        if spent > limit:
            raise ValueError(f"scoring took {spent:.1f} s, over the limit of {limit:g} s: take a longer --stride")
        plain = score(folder, config, "text", context)
        outcome.metrics = {
            "bpb": measured(sliding["bpb"]),
            "Stride": stride,
            "bpb, rows that do not overlap": measured(plain["bpb"]),
        }
        if config.banded:
            banded = score(folder, config, "text", 0, "--banded")
            outcome.metrics["bpb, banded (another score)"] = measured(banded["bpb"])
    outcome.metrics |= {
        "Quantization gap": measured(None if before is None else plain["bpb"] - before),
        "Bytes": counted,
        "Budget": budget,
        "Scoring seconds": measured(spent, spec=".1f"),
        "Artifact": sliding["artifact"][:12],
        "Text": sliding["text"][:12],
    }
    outcome.metrics |= {name: packed[name] for name in OF_PACKING}
    outcome.tables = [
        table_of("Bytes", {"Group": "", "Bytes": ",d"}, list(groups.items())),
        table_of("Code of the scoring process", {"File": "", "Bytes": ",d"}, list(trial["sources"].items())),
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
        seeds.append(scored.metrics | {name: packed.metrics[name] for name in PHASES})
        tables = tables or scored.tables + packed.tables[1:]
    if not seeds:
        raise ValueError(f"{config.tag}-{entry}-1 is not scored: bash runs/golf.sh scores all entries")
    return Result(entry, seeds, tables)


def read_baselines(config: Config) -> tuple[Result, list[Result]]:
    """Return the best baseline, by the first seed, which all have, and all of them."""
    baselines = [read_result(config, entry) for entry in scale_of(config.scale).baselines]
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
        "Scale": SCALES[config.scale].description,
    }
    rows = {result.name: result for result in (own, *baselines)}  # own may be one of them
    outcome.tables = [results_table("Entries, against the best baseline", list(rows.values()), best)]
    if others:
        outcome.tables.append(results_table(f"{own.name} without a trick each, against it", [own, *others], own))
    print0(*map(terminal_table, outcome.tables), sep="\n\n")
    print0(*(f"{name}: {format_value(value)}" for name, value in outcome.metrics.items()), sep="\n")
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
    if config.best:
        # Later seeds of a series that was stopped may not be scored yet.
        print0(read_baselines(replace(config, seeds=1))[0].name)
    elif config.entries:
        compare(config)
    else:
        evaluate(config)


if __name__ == "__main__":
    run(main, Config)
