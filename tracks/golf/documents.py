"""Score a golf artifact document by document, so that two artifacts can be compared on the same documents.

python -m tracks.golf.documents --tag=golf-1 --strides=0,128
python -m tracks.golf.documents --tag=golf-1 --text=report

There are two texts that have no document in common: the selection text (`choose`), the first bytes of validation, which
training and packing also look at; and the reporting text (`report`), the documents behind them. The loss is that of
the scoring process (tracks/golf/score.py), which adds up all documents because its bytes count. The artifact is first
checked as before any score of golf (tracks/golf/checks.py).
"""

import shutil
import tempfile
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir, write_json
from nanochat.settings import TagSettings
from nanochat.statistics import measured
from tracks.golf.entries import SCALES, code_bytes
from tracks.golf.eval import record_of
from tracks.golf.series import own_checks_table

if TYPE_CHECKING:
    from torch import Tensor

    from nanochat.data.corpus import Corpus
    from nanochat.gpt import GPT

FILE = "documents.json"  # bytes of each document; by stride, nats of each; what was checked
LEAST = 2  # documents of a text: their spread is the error
TextName = Literal["choose", "report"]


@options("documents")
class Config(TagSettings):
    """Score an artifact document by document, on the selection text or on the reporting text."""

    tag = "golf"
    text: TextName = option("choose", "choose: the first bytes of validation; report: the documents behind them")
    strides: str = option("0", "start a row every N tokens (0: no overlap); several: 0,128")
    eval_bytes: Count = option(0, "bytes of the text (0: the scale's)")
    rows: Count = option(8, "rows per batch", least=1)


def read_strides(strides: str) -> list[int]:
    """Return the strides of a list with commas; UserError for what is none."""
    words = strides.split(",")
    for word in words:
        if not word.isdecimal():
            raise UserError(f"--strides={strides}: {word or 'nothing'} is not a number of tokens, write it like 0,128")
    return [int(word) for word in dict.fromkeys(words)]


def documents_of(corpus: "Corpus", name: TextName, size: int) -> list[str]:
    """Return the documents of one of the two texts, of about `size` bytes; UserError if there are too few."""
    from nanochat.evals.bpb import first_documents

    found = first_documents(corpus.batches("val"), size)
    if name == "report":
        both = first_documents(corpus.batches("val"), 2 * size)
        texts = chain.from_iterable(batch.to_pylist() for batch in corpus.batches("val"))
        whole = list(islice(filter(None, texts), len(both)))
        # The last document of the selection text may be cut: its rest belongs to neither, wherever it comes again.
        seen = set(whole[: len(found)])
        behind = list(zip(both, whole, strict=True))[len(found) :]
        found = [text for text, document in behind if document not in seen]
    if len(found) < LEAST:
        where = "" if name == "choose" else " behind the selection text"
        raise UserError(f"validation has {len(found)} documents{where}: use more text, or other --eval-bytes")
    return found


def check_artifact(path: Path, documents: list[str], rows: int, device: str) -> Record:
    """Return what was checked of an artifact on a text; a UserError names the rule that it breaks."""
    from tracks.golf.checks import check_files

    with tempfile.TemporaryDirectory(prefix="golf-") as folder:
        shutil.copy(path, f"{folder}/artifact")
        write_json(Path(folder, "text"), documents)
        started = time.monotonic()
        checked = check_files(folder, rows, device)
    return checked | {"seconds": time.monotonic() - started}


def document_nats(model: "GPT", ids: "Tensor", lengths: "Tensor", owners: "Tensor", stride: int, rows: int) -> "Tensor":
    """Return the summed loss in nats of each document; their sum is the score of `score.score`.

    ids: tokens of all documents. lengths: bytes of each token in the vocabulary. owners: the number of the document of
    each token. stride: 0 for rows that do not overlap. rows: at once.
    """
    import torch

    from nanochat.evals.rows import overlapping_rows

    length = model.config.max_seq_len
    stride = stride or length
    inputs, targets = overlapping_rows(ids, length, stride)
    _, numbers_of_targets = overlapping_rows(owners, length, stride)
    sums = torch.zeros(int(owners[-1]) + 1, dtype=torch.float64)
    for numbers in torch.arange(len(inputs)).split(rows):
        goals = targets[numbers]  # a copy
        goals[numbers > 0, : length - stride] = -1  # in the row before too
        goals[lengths[goals.clamp(min=0)] == 0] = -1  # special tokens stand for no bytes
        losses = model(inputs[numbers].clamp(min=0).to(model.device), goals.to(model.device), reduction="none")
        counted = goals >= 0
        sums.index_add_(0, numbers_of_targets[numbers][counted], losses.view(goals.shape).double().cpu()[counted])
    return sums


def main(config: Config) -> None:
    import torch

    import rustbpe
    from nanochat.data.corpus import open_corpus
    from nanochat.paths import text_sha256
    from tracks.golf.artifact import read_artifact
    from tracks.golf.score import encode, load

    strides = read_strides(config.strides)
    outcome = Outcome.begin("golf_documents", f"{config.tag}-{config.text}", config)
    path = stage_dir("golf_pack", config.tag) / "artifact.golf"
    packed = record_of(path)
    scale = SCALES[packed.metrics["Scale"]]
    corpus = open_corpus(packed.metrics["Data"], packed.metrics["Shards"])
    documents = documents_of(corpus, config.text, config.eval_bytes or scale.eval_bytes)
    checked = check_artifact(path, documents, config.rows, scale.device)
    artifact = read_artifact(path.read_bytes())
    tokenizer = rustbpe.Tokenizer(**artifact.vocabulary)
    model = load(artifact, scale.device)
    ids = encode(documents, tokenizer)
    owners = (ids == tokenizer.special_tokens["<|bos|>"]).cumsum(0) - 1
    lengths = torch.from_numpy(tokenizer.token_lengths()).long()
    sizes = [len(text.encode()) for text in documents]
    found = {}
    seconds = {}
    with torch.inference_mode():
        for stride in strides:
            started = time.monotonic()
            found[stride] = document_nats(model, ids, lengths, owners, stride, config.rows).tolist()
            seconds[stride] = time.monotonic() - started
    sums = outcome.folder / FILE
    write_json(sums, {"bytes": sizes, "nats": found, "checked": checked})
    groups = {name: size for name, size in artifact.bytes.items() if name != "tokenizer"}
    text_hash = text_sha256("\0".join(documents))
    outcome.metrics = {
        "Documents": len(documents),
        "Bytes of text": sum(sizes),
        "Text": text_hash[:12],
        "SHA-256 of the text": text_hash,
        "SHA-256 of the artifact": packed.artifacts[path.name],
        "Bytes": sum(groups.values()) + code_bytes(),
        **{f"Scoring seconds, stride {stride}": measured(value, spec=".1f") for stride, value in seconds.items()},
        "Checking seconds": measured(checked["seconds"], spec=".1f"),
        **{name: packed.metrics[name] for name in ("Scale", "Steps", "Training seconds", "Packing seconds")},
    }
    outcome.tables = [own_checks_table(checked)]
    outcome.add_artifact(sums)
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
