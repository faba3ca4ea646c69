"""Test-time depth: the number of exits that a trained model is best run with, chosen on one text, scored on another.

python -m tracks.recursion.depth --tag=recursive --most=16

The exits of one checkpoint are evaluated on validation text, also beyond those that were trained. The one with the
fewest bits per byte is chosen, and is scored once, beside the last trained one, on a test text that nothing was chosen
by: the documents after the validation text that do not occur in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import read_jsonl, write_jsonl
from nanochat.settings import CorpusSettings, DeviceSettings, TagSettings
from nanochat.statistics import Estimate, Metrics, interval, measured

if TYPE_CHECKING:
    import pyarrow

    from nanochat.data.corpus import Corpus
    from nanochat.evals.bpb import EvalText
    from nanochat.runtime import Runtime
    from nanochat.tokenizer import Tokenizer
    from tracks.recursion.model import RecursiveGPT

MOST_EXITS = 16
COLUMNS = "Exits | Trained | Bits per byte:.4f | ±:.4f"


@options("evaluation")
class Config(CorpusSettings, DeviceSettings, TagSettings):
    """Choose the number of exits of a recursive base model on validation text, and score it on test text."""

    data = option("", "folder of text, corpus or mix (default: the model's)")
    step: Count = option(-1, "step of the checkpoint (-1: the newest)", group="model", least=-1, in_card=False)
    most: Count = option(MOST_EXITS, "exits to try", least=1)
    eval_bytes: Count = option(500_000, "bytes of validation text, and at most as many of test text", least=1)
    device_batch_size: Count = option(8, "rows per batch on one device", least=1, in_card=False)


@dataclass(frozen=True)
class DepthResult:
    """The exits of a model on validation text, and two of them on test text."""

    validation: list[Estimate]  # bits per byte at each exit
    trained: int  # exits
    chosen: int
    test_trained: Estimate
    test_chosen: Estimate
    gain: Estimate  # bits per byte that the chosen number of exits saves on test text, row by row


def choose_exits(validation: Sequence[Estimate]) -> int:
    """Return the number of exits with the fewest bits per byte, the smaller one of two equals."""
    return 1 + min(range(len(validation)), key=lambda i: validation[i].value)


def two_texts(corpus: "Corpus", tokenizer: "Tokenizer", size: int, row: int) -> "tuple[EvalText, EvalText | None]":
    """Return the first bytes of a corpus's validation text, and at most as many of what follows.

    The first text may end within a document, whose rest is in neither. The second text has no document of the first,
    and is None with fewer than two rows: their error needs two. row: tokens of a row.
    """
    import pyarrow

    from nanochat.evals.bpb import read_text

    documents = chain.from_iterable(batch.to_pylist() for batch in corpus.batches("val"))  # read by both, in turn
    seen = []

    def first() -> "Iterator[pyarrow.Array]":
        for document in documents:
            seen.append(document)
            yield pyarrow.array([document])

    validation = read_text(first(), tokenizer, size)
    known = set(seen)
    others = (pyarrow.array([document]) for document in documents if document not in known)
    test = read_text(others, tokenizer, size)
    return validation, test if len(test.ids) > 2 * row else None  # the last token has a target too


def measure_depth(
    model: "RecursiveGPT",
    validation: "EvalText",
    test: "EvalText",
    most: int,
    batch_size: int,
    runtime: "Runtime",
    length: int = 0,
) -> DepthResult:
    """Choose the number of exits, up to `most`, on the validation text; score it and the trained one on the test text.

    length: of a row in tokens, 0: the model's context.
    """
    from tracks.recursion.exits import bits_by_exit, compare_exits

    before = model.steps
    trained = model.config.supervision
    row = length or model.config.max_seq_len
    try:
        model.steps = most
        found = bits_by_exit(model, validation, row, batch_size, runtime)
        chosen = choose_exits(found)  # before the test text is looked at
        test_trained, test_chosen, gain = compare_exits(model, test, trained, chosen, row, batch_size, runtime)
    finally:
        model.steps = before
    return DepthResult(found, trained, chosen, test_trained, test_chosen, gain)


# ---- the report ----


def depth_table(results: Sequence[DepthResult]) -> Record:
    """Return the table of exits on validation text: errors over rows for one model, else over seeds."""
    rows = []
    for number, estimates in enumerate(zip(*(one.validation for one in results), strict=True), 1):
        trained = "yes" if number <= results[0].trained else "no"
        if len(results) == 1:
            rows.append([number, trained, *estimates[0]])
        else:
            rows.append([number, trained, *interval([one.value for one in estimates])])
    error = "standard error over rows" if len(results) == 1 else "95 % over seeds"
    chosen = ", ".join(str(one.chosen) for one in results)
    note = f"Chosen by this text: {chosen}. Trained: {results[0].trained}."
    return table_of(f"Exits of one checkpoint on validation text, ± {error}", COLUMNS, rows, note)


def depth_figures(results: Sequence[DepthResult]) -> Metrics:
    """Return what the test text says about the choice: of one model, or of several with the means over seeds."""
    if len(results) == 1:
        [one] = results
        trained, chosen, gain = one.test_trained.metric(), one.test_chosen.metric(), one.gain.metric()
    else:
        trained, chosen, gain = (
            measured(*interval(values))
            for values in (
                [one.test_trained.value for one in results],
                [one.test_chosen.value for one in results],
                [one.gain.value for one in results],
            )
        )
    return {
        "Exits chosen on validation text": ", ".join(str(one.chosen) for one in results),
        "Test bpb, exits as trained": trained,
        "Test bpb, chosen exits": chosen,
        "Test bpb that the choice saves": gain,
    }


def count_looks(path: Path, look: Record) -> int:
    """Write down that a choice is scored on test text; return how many unlike ones were, so that none is forgotten."""
    looks = list(read_jsonl(path, dict)) if path.exists() else []
    if look not in looks:
        looks.append(look)
        write_jsonl(path, looks)
    return len(looks)


def main(config: Config) -> None:
    from nanochat.checkpoint import manifest_hash
    from nanochat.data.corpus import open_corpus
    from nanochat.dataloader import corpus_of
    from nanochat.models import load_model
    from nanochat.runtime import setup
    from tracks.recursion.model import RecursiveGPT

    outcome = Outcome.begin("recursion_depth", config.tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, checkpoint = load_model("base_train", config.tag, config.step, runtime)
        if not isinstance(model, RecursiveGPT):
            raise UserError(f"{config.tag} is not a recursive model: train one with tracks.recursion.train")
        if config.data:
            corpus = open_corpus(config.data, config.num_shards)
        else:
            corpus = corpus_of(checkpoint.manifest, config.num_shards, config.tag)
        row = model.config.max_seq_len
        validation, test = two_texts(corpus, tokenizer, config.eval_bytes, row)
        if test is None:
            raise UserError(
                f"--eval-bytes={config.eval_bytes} leaves less than two rows of {row:,} tokens for a test, of the"
                f" validation text of {corpus.name}: use fewer bytes, but enough for two rows, or more text"
            )
        result = measure_depth(model, validation, test, config.most, config.device_batch_size, runtime)
        outcome.tables = [depth_table([result])]
        outcome.metrics = depth_figures([result]) | {"Step": checkpoint.step, "Data": corpus.name}
        if runtime.rank == 0:
            look = {
                "checkpoint": manifest_hash(checkpoint.manifest),
                "text": corpus.name,
                "bytes": config.eval_bytes,
                "most": config.most,
                "precision": runtime.dtype_name,
            }
            outcome.metrics["Looks at test text"] = count_looks(outcome.folder / "looks.jsonl", look)
            outcome.finish()


if __name__ == "__main__":
    run_script(main)
