"""Judge an entry from elsewhere: a folder with a scorer, which runs in the sandbox and is asked for probabilities.

python -m tracks.golf.judge my-entry                        200 kB, the text of the embedded scale
python -m tracks.golf.judge my-entry --scale=cpu --data=my-text

The judge keeps the text. It gives tokens in parts, each once and without its last token, and has the scores of a part
before the entry may learn from it. It adds up all probabilities itself, and counts all files of the folder. Then
another process of the entry is asked for some of the places again, without the tokens that follow. What breaks a rule
is refused by the rule's name; nanochat/trial/scorer.py has the interface.
"""

import tempfile
from pathlib import Path

from nanochat.config import Count, Positional, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.settings import TagSettings, TextSettings
from nanochat.statistics import measured
from tracks.golf.entries import SCALES, ScaleName, check_size


@options("judge")
class Config(TextSettings, TagSettings):
    """Score a folder with a model and its own scorer, and check that it keeps the rules."""

    folder: Positional[str] = option("", "the entry: a folder with scorer.py and the files that it reads")
    tag = option("", "name of the judgement, and of its folder (default: the folder's name)")
    scale: ScaleName = option("embedded", "budget of bytes and of seconds, and the text")
    eval_bytes: Count = option(0, "bytes of validation text (0: the scale's)")
    unsafe_exec: bool = option(False, "run the scorer without the sandbox where it does not work")

    def __post_init__(self) -> None:
        if not self.folder:
            raise UserError("name the entry's folder: python -m tracks.golf.judge FOLDER")


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus
    from nanochat.evals import sandbox
    from nanochat.evals.bpb import first_documents
    from nanochat.trial.judging import Limits, check_rows, judge
    from nanochat.trial.scorer import Refused, copy_files, entry_files

    folder = Path(config.folder).expanduser().resolve()
    outcome = Outcome.begin("golf_judge", config.tag or folder.name, config)
    sandbox.require(config.unsafe_exec)
    scale = SCALES[config.scale]
    if scale.device != "cpu":
        raise UserError(f"--scale={config.scale} scores on a GPU, which the sandbox has not: use embedded or cpu")
    files = entry_files(folder)
    check_size(files, scale.bytes)
    data = scale.flags["--data"] if config.data == "auto" else config.data
    documents = first_documents(open_corpus(data).batches("val"), config.eval_bytes or scale.eval_bytes)
    with tempfile.TemporaryDirectory(prefix="golf-") as temporary:
        place = Path(temporary).resolve() / "entry"
        place.mkdir()
        place.parent.chmod(0o755)
        copy_files(folder, list(files), place)
        size = check_size(entry_files(place), scale.bytes)  # of what will run
        outcome.metrics = {"Bytes": size, "Budget": scale.bytes, "Sandbox": "no" if sandbox.missing() else "yes"}
        outcome.tables = [table_of("Bytes, with those of names", "File | Bytes:,d", list(entry_files(place).items()))]
        try:
            found = judge(place, documents, Limits(scale.scoring, config.unsafe_exec))
        except Refused as refused:  # stays on the record: the dice of another try may fall otherwise
            outcome.metrics["Refused"] = str(refused)
            outcome.write()
            raise
    outcome.metrics = {
        "bpb": measured(found.bpb),
        **outcome.metrics,
        "Bytes of text": found.bytes,
        "Tokens": found.tokens,
        "Scoring seconds": measured(found.seconds, spec=".1f"),
    }
    outcome.tables.append(table_of("Checks", "Rule | Passed by", check_rows(found)))
    print0(f"golf_judge: {size:,} of {scale.bytes:,} bytes, {found.bpb:.4f} bits per byte")
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
