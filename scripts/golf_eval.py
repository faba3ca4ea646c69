"""Score a golf entry's artifact in a process of its own, in the sandbox; or compare entries over seeds.

python -m scripts.golf_eval --tag=golf-1
python -m scripts.golf_eval --tag=golf --entries=golf,golf-without-smear --seeds=3
"""

import json
import shutil
import site
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import Count, changed, option, run
from nanochat.lab.golf import SCALES, Result, check_size, first_documents, results_table, scale_of, validation_documents
from nanochat.log import Record, format_value, metric_curve, print0, read_metrics, table_of, terminal_table
from nanochat.outcome import Metrics, Outcome, measured
from nanochat.paths import read_sha256, stage_dir, write_json
from nanochat.settings import TagSettings

if TYPE_CHECKING:
    from nanochat.artifact import Artifact

ROOT = Path(__file__).parent.parent
STAGE = "golf_eval"
TRIAL_BYTES = 20_000  # of text, to measure the speed
SHORTEST = 8  # tokens; strides are the context halved, down to this
MARGIN = 2.0  # allowed time over the estimate: the machine may become busy
PHASES = ("Training seconds", "Packing seconds")  # on the clock
MEMORY = 2**36  # address space of the scoring process; the libraries reserve far more than they use


@dataclass(frozen=True)
class Config(TagSettings):
    """Score an artifact, or compare a series of entries."""

    tag: str = changed(TagSettings, "tag", "golf")
    stride: str = option(
        "auto",
        "tokens from row to row (0: rows do not overlap; auto: the scale's, or more if it does not fit)",
        group="score",
    )
    rows: Count = option(8, "rows at once", group="score", least=1)
    banded: bool = option(True, "also score with one pass over long rows, as another score", group="score")
    eval_bytes: Count = option(0, "bytes of validation text (0: the scale's)", group="score", least=0)
    scoring_seconds: float = option(0.0, "limit for the scoring process (0: the scale's)", group="score", least=0)
    budget: Count = option(0, "bytes of model and code (0: the scale's)", group="score", least=0)
    count_tokenizer: bool = option(False, "count the vocabulary's bytes too", group="score")
    unsafe_exec: bool = option(False, "score without a sandbox where there can be none", group="score")
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


def score(folder: Path, config: Config, text: str, stride: int, seconds: float, banded: bool = False) -> Record:
    """Return the result of the scoring process, which reads a copy of the artifact and the text, nothing else of ours.

    folder: has the artifact and the text.
    """
    from nanochat.evals.sandbox import Limits
    from nanochat.evals.sandbox import run as run_contained

    words = ["golf", str(folder / "artifact"), str(folder / text), f"--stride={stride}", f"--rows={config.rows}"]
    words += [f"--seconds={seconds}", *["--banded"] * banded]
    paths = [str(ROOT), *site.getsitepackages()]
    program = PROGRAM.format(paths=paths, words=words)
    limits = Limits(seconds=seconds + 60, cpu_seconds=int(64 * (seconds + 60)), memory=MEMORY, processes=256)
    # PyTorch asks the system for its processors.
    readable = [str(ROOT / "nanochat"), *paths[1:], str(folder), "/sys/devices/system/cpu"]
    verdict = run_contained(program, limits, config.unsafe_exec, readable)
    if not verdict.passed:
        message = verdict.output.strip().splitlines() or ["the scoring process ended and printed nothing"]
        raise ValueError(message[-1].removeprefix("error: "))
    return json.loads(verdict.output.strip().splitlines()[-1])


def choose_stride(config: Config, trial: Record, context: int, tokens: float, seconds: float, least: int) -> int:
    """Print the cost of each stride, from a trial; return the one asked for, or the first from `least` that fits."""
    from nanochat.golf import row_count

    row = trial["seconds of the model"] / trial["rows"]
    start = trial["seconds"] - trial["seconds of the model"]
    costs, stride = {}, context
    while stride >= SHORTEST:
        costs[stride] = start + row * row_count(int(tokens), context, stride)
        stride //= 2
    fitting = [stride for stride, cost in costs.items() if MARGIN * cost <= seconds]
    rows = [[stride, cost, "yes" if stride in fitting else "no"] for stride, cost in costs.items()]
    title = f"Cost of each stride, from measured speed; it fits if twice that is within {seconds:g} seconds"
    print0(terminal_table(table_of(title, {"Stride": "", "Seconds": ",.1f", "Fits": ""}, rows)))
    if config.stride == "auto":
        return min((stride for stride in fitting if stride >= least), default=context)
    if not config.stride.isdecimal():
        raise ValueError(f"--stride={config.stride} has to be auto or a number of tokens")
    return int(config.stride) or context


def open_packed(tag: str) -> "tuple[Path, Artifact, Outcome]":
    """Return the file that golf_pack has finished, its content, and the record; ValueError for any other file."""
    from nanochat.artifact import read_artifact
    from nanochat.gpt import GPTConfig

    path = stage_dir("golf_pack", tag) / "artifact.golf"
    record = path.with_name("outcome.json")
    if not path.exists() or not record.exists():
        raise ValueError(f"there is no finished artifact at {path}: python -m scripts.golf_pack makes one")
    made = Outcome.load(record)
    if made.artifacts.get(path.name) != read_sha256(path):
        raise ValueError(f"{path} is not the file that scripts.golf_pack has finished: run it again")
    artifact = read_artifact(path.read_bytes())
    vocabulary = 256 + len(artifact.vocabulary["merges"]) + len(artifact.vocabulary["special_tokens"])
    trained = GPTConfig(**artifact.config).vocab_size
    if vocabulary != trained:
        raise ValueError(
            f"the artifact's tokenizer has {vocabulary:,} tokens, but its model {trained:,}: pack it again"
        )
    return path, artifact, made


def evaluate(config: Config) -> None:
    """Score one artifact, and write the outcome."""
    outcome = Outcome.begin(STAGE, config.tag, config)
    path, artifact, made = open_packed(config.tag)
    packed = made.metrics
    scale = SCALES[packed["Scale"]]
    seconds, budget = config.scoring_seconds or scale.scoring, config.budget or scale.bytes
    context = artifact.config["max_seq_len"]
    documents = validation_documents(packed["Data"], config.eval_bytes or scale.eval_bytes)
    with tempfile.TemporaryDirectory(prefix="golf-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(path, folder / "artifact")
        write_json(folder / "text", documents)
        write_json(folder / "trial", first_documents([documents], TRIAL_BYTES))
        trial = score(folder, config, "trial", context, seconds)
        groups = artifact.bytes | {"code": sum(trial["sources"].values())}
        size = check_size(groups, budget, config.count_tokenizer)
        total = sum(len(document.encode()) for document in documents)
        tokens = trial["tokens"] / trial["bytes"] * total
        stride = choose_stride(config, trial, context, tokens, seconds, scale.stride)
        started = time.monotonic()
        sliding = score(folder, config, "text", stride, seconds)
        spent = time.monotonic() - started
        if spent > seconds:
            raise ValueError(f"scoring took {spent:.1f} s, over the limit of {seconds:g} s: take a longer --stride")
        plain = score(folder, config, "text", context, seconds)
        banded = score(folder, config, "text", 0, seconds, banded=True) if config.banded else None
    same_text = made.config["eval_bytes"] == config.eval_bytes
    gap = plain["bpb"] - packed["bpb before quantization"]["value"] if same_text else None
    outcome.metrics = score_metrics(sliding, plain, banded, stride) | {
        "bpb before quantization": packed["bpb before quantization"],
        "Quantization gap": measured(gap),
        "Bytes": size,
        "Budget": budget,
        "Scoring seconds": measured(spent, spec=".1f"),
        **{name: packed[name] for name in ("Steps", "Tokens", "Parameters", "Bits per parameter", "Compression ratio")},
        "Artifact": sliding["artifact"][:12],
        "Text": sliding["text"][:12],
        "Tokenizer": packed["Tokenizer"],
    }
    outcome.tables = [table_of("Bytes", {"Group": "", "Bytes": ",d"}, list(groups.items()))]
    outcome.tables.append(
        table_of("Code of the scoring process", {"File": "", "Bytes": ",d"}, list(sliding["sources"].items()))
    )
    print0(f"golf_eval: {size:,} of {budget:,} bytes; bpb {sliding['bpb']:.4f} with stride {stride}, in {spent:.1f} s")
    print0(
        f"final_mixed_quant_roundtrip val_loss:{sliding['loss']:.8f} val_bpb:{sliding['bpb']:.8f}"
        f" stride:{stride} eval_time:{1000 * spent:.0f}ms"
    )
    outcome.write()


def score_metrics(sliding: Record, plain: Record, banded: Record | None, stride: int) -> Metrics:
    """Return the scores as metrics."""
    metrics = {
        "bpb": measured(sliding["bpb"]),
        "Stride": stride,
        "bpb, rows that do not overlap": measured(plain["bpb"]),
    }
    if banded:
        metrics["bpb, banded (another score)"] = measured(banded["bpb"])
    return metrics


def read_outcomes(config: Config, stage: str, entry: str) -> list[Outcome]:
    """Return the outcomes of an entry, one for each seed that was run."""
    paths = [stage_dir(stage, f"{config.tag}-{entry}-{seed}") / "outcome.json" for seed in range(1, config.seeds + 1)]
    found = [Outcome.load(path) for path in paths if path.exists()]
    if not found:
        raise ValueError(f"{config.tag}-{entry}-1 is not scored: bash runs/golf.sh scores all entries")
    return found


def read_result(config: Config, entry: str) -> Result:
    """Return the scores of an entry over the seeds; ValueError if one is not that of the packed file."""
    scores = [outcome.metrics for outcome in read_outcomes(config, STAGE, entry)]
    packed = read_outcomes(config, "golf_pack", entry)
    hashes = [outcome.artifacts["artifact.golf"][:12] for outcome in packed]
    if hashes != [score["Artifact"] for score in scores]:
        raise ValueError(f"{config.tag}-{entry} has a packed file that is not scored: run scripts.golf_eval for it")
    packs = [outcome.metrics for outcome in packed]
    seconds = [pack["Training seconds"]["value"] + pack["Packing seconds"]["value"] for pack in packs]
    return Result(entry, [one["bpb"]["value"] for one in scores], [one["Bytes"] for one in scores], seconds)


def check_comparable(config: Config, entries: list[str]) -> None:
    """Raise a ValueError if the entries were scored in different ways."""
    scores = [outcome.metrics for entry in entries for outcome in read_outcomes(config, STAGE, entry)]
    for name in ("Stride", "Text", "Budget"):
        values = sorted({str(score[name]) for score in scores})
        if len(values) > 1:
            raise ValueError(f"the scores of {config.tag} differ in {name} ({', '.join(values)}): score them again")


def first_score(result: Result) -> float:
    """Return the score of the first seed, which all baselines have."""
    return result.bpb[0]


def compare(config: Config) -> None:
    """Write the outcome of a series: the first of its entries against the best of the baselines, and the ablation."""
    scale = scale_of(config.scale)
    entries = config.entries.split(",")
    outcome = Outcome.begin(STAGE, config.tag, config)
    own, *others = [read_result(config, entry) for entry in entries]
    baselines = [read_result(config, entry) for entry in scale.baselines]
    best = min(baselines, key=first_score)
    check_comparable(config, [*entries, *scale.baselines])
    first = read_outcomes(config, STAGE, entries[0])
    packs = read_outcomes(config, "golf_pack", entries[0])
    phases = {name: value for name, value in means(packs).items() if name in PHASES}
    outcome.metrics = series_metrics(own, best) | means(first) | phases | {"Scale": scale.description}
    rest = [baseline for baseline in baselines if baseline.name != own.name]
    outcome.tables = [results_table("Entries, against the best baseline", [own, *rest], best)]
    if others:
        outcome.tables.append(results_table(f"{own.name} without a trick each, against it", [own, *others], own))
    outcome.tables += first[0].tables
    outcome.tables += packs[0].tables[1:]
    outcome.curves = pictures(config, [own.name, best.name], first[0])
    print0(*map(terminal_table, outcome.tables[: 1 + bool(others)]), sep="\n\n")
    print0(*(f"{name}: {format_value(value)}" for name, value in outcome.metrics.items()), sep="\n")
    outcome.write()


def series_metrics(own: Result, best: Result) -> Metrics:
    """Return the comparison with the baseline."""
    *_, difference, p, _, _, _, seeds = own.row(best)
    return {
        "Entry": own.name,
        "Seeds": seeds,
        "Baseline": best.name,
        "Baseline minus entry": measured(None if difference is None else -difference),
        "p": measured(p, spec=".2g"),
    }


def means(outcomes: list[Outcome]) -> Metrics:
    """Return the mean of each number in the outcomes' metrics, with the deviation; what is equal in all, and texts."""
    found = {}
    for name in outcomes[0].metrics:
        values = [outcome.metrics[name] for outcome in outcomes]
        numbers = [value["value"] if isinstance(value, dict) else value for value in values]
        if all(value == values[0] for value in values):
            found[name] = values[0]
        elif isinstance(values[0], str):
            found[name] = ", ".join(values)
        else:
            spec = values[0]["format"] if isinstance(values[0], dict) else ",.0f"
            found[name] = measured(statistics.fmean(numbers), statistics.stdev(numbers), spec)
    return found


def pictures(config: Config, entries: list[str], scored: Outcome) -> list[Record]:
    """Return the plots: bytes by group, as shares of the budget, and validation over the clock, of the first seed."""
    budget = scored.metrics["Budget"]
    bars = {group: [size / budget, 0.0, f"{size:,}"] for group, size in scored.tables[0]["rows"]}
    logs = {entry: stage_dir("base_train", f"{config.tag}-{entry}-1") / "metrics.jsonl" for entry in entries}
    series = {
        entry: metric_curve(read_metrics(path), "val/bpb", over="total_training_time") for entry, path in logs.items()
    }
    clock = {"title": "Validation over the clock, first seed", "x": "seconds", "y": "bits per byte", "series": series}
    return [{"title": f"Bytes by group, of {budget:,}", "bars": bars}, clock]


def main(config: Config) -> None:
    if config.best:
        first = replace(config, seeds=1)  # later seeds of a series that was stopped may not be scored yet
        print0(min((read_result(first, entry) for entry in scale_of(config.scale).baselines), key=first_score).name)
    elif config.entries:
        compare(config)
    else:
        evaluate(config)


if __name__ == "__main__":
    run(main, Config)
