"""Score a golf entry's artifact in a process of its own, in the sandbox; or compare entries over seeds.

python -m tracks.golf.eval --tag=golf-1
python -m tracks.golf.eval --tag=golf --entries=golf,golf-without-smear --seeds=3
"""

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from nanochat.config import Count, option, options, run_script
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.log import Record, metric_curve, print0, read_metrics, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import read_sha256, stage_dir, write_json
from nanochat.settings import TagSettings
from nanochat.statistics import measured
from tracks.golf.entries import BASELINES, MARGIN, SCALES, Scale, ScaleName, check_size
from tracks.golf.series import (
    CHECKS,
    best_baseline,
    checks_of,
    checks_table,
    comparison_table,
    own_checks_table,
    read_arm,
    require_equal,
)

SHORTEST = 8  # tokens; strides are the context halved, down to this
CODE = ("nanochat", "tracks/__init__.py", "tracks/golf")  # what has all of the scoring code
MEMORY = 2**36  # address space of the scoring process; the libraries reserve far more than they use


@options("score")
class Config(TagSettings):
    """Score an artifact, or compare a series of entries."""

    tag = "golf"
    stride: Count = option(
        -1, "start a row every N tokens (0: no overlap; -1: the scale's stride, or a longer one if time is short)"
    )
    rows: Count = option(8, "rows per batch", least=1)
    count_tokenizer: bool = option(False, "count the vocabulary's bytes too")
    unsafe_exec: bool = option(False, "score without the sandbox where it does not work")
    entries: str = option(
        "",
        "compare the runs TAG-ENTRY-SEED of these entries, the first one with the rest (default: score an artifact)",
        group="series",
    )
    seeds: Count = option(3, "seeds 1 to N of the first entry, and of the best baseline", group="series", least=1)
    ablation_seeds: Count = option(0, "seeds 1 to N of the other entries (0: as --seeds)", group="series")
    check: Literal["", ScaleName] = option(
        "",
        "only check that artifacts of this scale can be scored here (default: no check)",
        group="series",
        in_card=False,
    )


# Runs in the sandbox, or on a GPU.
PROGRAM = """
import json
import sys
sys.path[:0] = {paths}
from nanochat.errors import UserError
from tracks.golf.{module} import {function}
try:
    print(json.dumps({function}{arguments}))
except (UserError, TimeoutError) as error:
    sys.exit(str(error))
"""


def find_sandbox(device: str, unsafe: bool) -> str:
    """Return for the card if the scoring process has a sandbox; UserError if it needs one that this system lacks."""
    from nanochat.evals import sandbox

    if device != "cpu":
        return "no, on a GPU"
    sandbox.require(unsafe)
    return "no" if sandbox.missing() else "yes"


def run_scorer(
    folder: str, scale: Scale, unsafe: bool, rows: int, stride: int = 0, counted: Collection[str] = CODE
) -> Record:
    """Return the score of the artifact and the text in a folder, by a process of its own, in fp32.

    counted: the files and folders of this repository that it can read.
    """
    arguments = (folder, stride, rows, scale.scoring, scale.device)
    return run_alone("score", "score_files", arguments, folder, scale, unsafe, counted)


def run_checks(folder: str, scale: Scale, unsafe: bool, rows: int) -> Record:
    """Return what was checked of the scorer with this artifact; a UserError names the rule that it breaks."""
    return run_alone("checks", "check_files", (folder, rows, scale.device), folder, scale, unsafe)


def run_alone(
    module: str,
    function: str,
    arguments: tuple[Any, ...],
    folder: str,
    scale: Scale,
    unsafe: bool,
    code: Collection[str] = CODE,
) -> Record:
    """Return the result of a function, in a process that reads a copy of the artifact and the text, and the code.

    On a GPU it is a plain process. folder: a real path, as the sandbox has no symbolic links.
    """
    from nanochat.evals import sandbox

    root, *packages = (os.path.realpath(path) for path in (str(ROOT), *site.getsitepackages()))
    program = PROGRAM.format(paths=[root, *packages], module=module, function=function, arguments=arguments)
    if scale.device == "cpu":
        seconds = scale.scoring + 60
        limits = sandbox.Limits(seconds=seconds, cpu_seconds=int(64 * seconds), memory=MEMORY, processes=256)
        # PyTorch asks the system for its processors.
        readable = [*(f"{root}/{name}" for name in code), *packages, str(folder), "/sys/devices/system/cpu"]
        verdict = sandbox.run_program(program, limits, unsafe, readable)
    else:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        verdict = sandbox.Verdict(done.returncode == 0, done.stderr + done.stdout)
    *_, last = verdict.output.strip().splitlines() or ["the scoring process ended and printed nothing"]
    if not verdict.passed:
        raise UserError(last)
    return json.loads(last)


def choose_stride(asked: int, plain: Record, scale: Scale) -> int:
    """Print the cost of each stride, by the pass without overlap; return the one asked for, or the first that fits."""
    context = stride = plain["stride"]
    costs = {}  # stride → seconds
    while stride >= SHORTEST:
        more_rows = context / stride - 1  # relative to the pass without overlap
        costs[stride] = plain["seconds"] + more_rows * plain["seconds of the model"]
        stride //= 2
    fitting = [stride for stride in costs if MARGIN * costs[stride] <= scale.scoring]
    rows = [[stride, cost, "yes" if stride in fitting else ""] for stride, cost in costs.items()]
    title = f"Cost of each stride, from measured speed; it fits if twice that is within {scale.scoring:g} seconds"
    print0(terminal_table(table_of(title, "Stride | Seconds:,.1f | Fits", rows)))
    if asked < 0:
        return min((stride for stride in fitting if stride >= scale.stride), default=context)
    return asked or context


def record_of(path: Path) -> Outcome:
    """Return the record of an artifact that tracks.golf.pack has finished; UserError for any other file."""
    record = path.with_name("outcome.json")
    made = Outcome.load(record) if path.exists() and record.exists() else None
    if not made or made.artifacts.get(path.name) != read_sha256(path):
        raise UserError(f"there is no finished artifact at {path}: python -m tracks.golf.pack makes one")
    return made


def evaluate(config: Config) -> None:
    """Score one artifact, and write the outcome."""
    from nanochat.data.corpus import open_corpus
    from nanochat.evals.bpb import first_documents

    outcome = Outcome.begin("golf_eval", config.tag, config)
    path = stage_dir("golf_pack", config.tag) / "artifact.golf"
    packed = record_of(path)
    scale = SCALES[packed.metrics["Scale"]]
    contained = find_sandbox(scale.device, config.unsafe_exec)
    # The text that tracks.golf.pack has measured the model on.
    size = packed.config["eval_bytes"] or scale.eval_bytes
    corpus = open_corpus(packed.metrics["Data"], packed.metrics["Shards"])
    with tempfile.TemporaryDirectory(prefix="golf-") as temporary:
        folder = os.path.realpath(temporary)
        os.chmod(folder, 0o755)
        shutil.copy(path, f"{folder}/artifact")
        write_json(Path(folder, "text"), first_documents(corpus.batches("val"), size))
        subject = folder, scale, config.unsafe_exec, config.rows
        checked = run_checks(*subject)
        plain = run_scorer(*subject)
        groups = plain["groups"] | {"code": sum(plain["sources"].values())}
        apart = {} if config.count_tokenizer else {"tokenizer (not counted)": groups.pop("tokenizer")}
        counted = check_size(groups, scale.bytes)
        stride = choose_stride(config.stride, plain, scale)
        # It ends with an error if it takes too long, and finds no file that was not counted.
        sliding = run_scorer(*subject, stride, plain["sources"])
    outcome.metrics = {
        "bpb": measured(sliding["bpb"]),
        "Stride": stride,
        "bpb, rows that do not overlap": measured(plain["bpb"]),
        "Quantization gap": measured(plain["bpb"] - packed.figure("bpb before quantization")),
        "Bytes": counted,
        "Budget": scale.bytes,
        "Scoring seconds": measured(sliding["seconds"], spec=".1f"),
        "Scoring device": scale.device,
        "Sandbox": contained,
        "Artifact": packed.artifacts[path.name][:12],
        "Text": sliding["text"][:12],
        **packed.metrics,
    }
    outcome.tables = [
        table_of("Bytes", "Group | Bytes:,d", list((groups | apart).items())),
        table_of("Code of the scoring process", "File | Bytes:,d", list(plain["sources"].items())),
        own_checks_table(checked),
        *packed.tables,
    ]
    print0(
        f"golf_eval: {counted:,} of {scale.bytes:,} bytes\n"
        f"final_mixed_quant_roundtrip val_loss:{sliding['loss']:.8f} val_bpb:{sliding['bpb']:.8f}"
        f" stride:{stride} eval_time:{1000 * sliding['seconds']:.0f}ms"
    )
    outcome.write()


def compare(config: Config) -> None:
    """Write the outcome of a series: the first of its entries against the best of the baselines, and the ablation."""
    outcome = Outcome.begin("golf_eval", config.tag, config)
    entry, *without = config.entries.split(",")
    own = read_arm(config.tag, entry, config.seeds)
    others = [read_arm(config.tag, name, config.ablation_seeds or config.seeds) for name in without]
    # One that was the best before may have more seeds than the first, of earlier flags.
    baselines = {name: read_arm(config.tag, name, 1) for name in BASELINES}
    best = read_arm(config.tag, best_baseline(config.tag), config.seeds)
    baselines[best.name] = best
    require_equal([own, *others, *baselines.values()])
    difference, p = best.against(own)
    outcome.metrics = {
        "Entry": own.name,
        "Seeds": len(own.runs),
        "Baseline": best.name,
        "Baseline minus entry": measured(difference),
        "p": measured(p, spec=".2g"),
        **own.means(),
    }
    outcome.tables = [comparison_table("Entries, against the best baseline", [own, *baselines.values()], best)]
    if others:
        title = f"{own.name} without a trick each, against it"
        outcome.tables.append(comparison_table(title, [own, *others], own))
    outcome.tables.append(checks_table(checks_of([own, *others, *baselines.values()])))
    outcome.tables += [table for table in own.runs[0].tables if table["title"] != CHECKS]  # of its first seed
    clock = {"title": "Validation over the clock, first seed", "x": "seconds", "y": "bits per byte", "series": {}}
    for entry in (own.name, best.name):
        records = read_metrics(stage_dir("base_train", f"{config.tag}-{entry}-1") / "metrics.jsonl")
        clock["series"][entry] = metric_curve(records, "val/bpb", over="total_training_time")
    outcome.curves = [clock]
    outcome.finish()


def main(config: Config) -> None:
    if config.check:
        find_sandbox(SCALES[config.check].device, config.unsafe_exec)
    elif config.entries:
        compare(config)
    else:
        evaluate(config)


if __name__ == "__main__":
    run_script(main)
