"""Judge an entry from elsewhere: a folder with a scorer, which runs in the sandbox and is asked for probabilities.

python -m tracks.golf.judge my-entry                        200 kB; a first try, as this text ranks nothing
python -m tracks.golf.judge my-entry --scale=cpu --data=my-text

The judge keeps the text. It gives tokens in parts, each once and without its last token, and has the scores of a part
before the entry may learn from it. It adds up all probabilities itself, and counts all files of the folder. Then
another process of the entry is asked for some of the places again, without the tokens that follow. What breaks a rule
is refused by the rule's name, and each try is on record (tries.py); nanochat/trial/scorer.py has the interface.
"""

import tempfile
from pathlib import Path

from nanochat.config import Count, Positional, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import hold_folder, text_sha256
from nanochat.settings import TagSettings, TextSettings
from nanochat.statistics import measured
from tracks.golf.entries import SCALES, ScaleName

# The generator is in this repository, about 30 kB when compressed: it would fit into an entry. A new seed for each
# judgement would not do: no entry could learn that world's facts, and no two scores would be of the same text.
RANKS_NOTHING = (
    "This score ranks nothing: its text is an embedded world, and an entry with the world's generator could write it "
    "again. A ranking needs --data with a text that is nowhere else."
)


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
    from nanochat.trial.judging import Limits, check_rows
    from nanochat.trial.ledger import Ledger
    from nanochat.trial.scorer import Refused, copy_files, entry_files
    from tracks.golf import tries

    folder = Path(config.folder).expanduser().resolve()
    outcome = Outcome.begin("golf_judge", config.tag or folder.name, config)
    sandbox.require(config.unsafe_exec)
    scale = SCALES[config.scale]
    if scale.device != "cpu":
        raise UserError(f"--scale={config.scale} scores on a GPU, which the sandbox has not: use embedded or cpu")
    corpus = open_corpus(scale.flags["--data"] if config.data == "auto" else config.data)
    documents = first_documents(corpus.batches("val"), config.eval_bytes or scale.eval_bytes)
    place, files = folder, entry_files(folder)
    with hold_folder(outcome.folder), tempfile.TemporaryDirectory(prefix="golf-") as temporary:
        if sum(files.values()) <= scale.bytes:  # what is above the budget is not even copied
            place = Path(temporary).resolve() / "entry"
            place.mkdir()
            place.parent.chmod(0o755)
            copy_files(folder, list(files), place)
            files = entry_files(place)  # of what will run
            outcome.tables = [table_of("Bytes, with those of names", "File | Bytes:,d", list(files.items()))]
        size, entry = sum(files.values()), tries.files_hash(place, files)
        outcome.metrics = {"Bytes": size, "Budget": scale.bytes, "Sandbox": "no" if sandbox.missing() else "yes"}
        ledger, elsewhere = Ledger(outcome.folder / tries.LEDGER), tries.tries_elsewhere(outcome.folder, entry)
        text = {"scale": config.scale, "data": corpus.name, "text": text_sha256("\0".join(documents))}
        ledger.add("try", at=outcome.started, tag=outcome.tag, entry=entry, bytes=size, **text)
        try:
            found = tries.verdict(place, files, scale.bytes, documents, Limits(scale.scoring, config.unsafe_exec))
        except Refused as refused:
            ledger.add("verdict", verdict=str(refused), rule=refused.check)
            table = tries.tries_table(ledger, elsewhere)
            outcome.metrics |= {"Refused": str(refused), "Tries": len(table["rows"])}
            outcome.tables.append(table)
            outcome.write()
            raise
        ledger.add("verdict", verdict=f"{found.bpb:.4f} bits per byte", bpb=found.bpb)
        table = tries.tries_table(ledger, elsewhere)
    outcome.metrics = {
        "bpb": measured(found.bpb),
        **outcome.metrics,
        "Bytes of text": found.bytes,
        "Tokens": found.tokens,
        "Scoring seconds": measured(found.seconds, spec=".1f"),
        "Tries": len(table["rows"]),
    }
    is_world = any(source.seed is not None for source in corpus.sources)
    checks = table_of("Checks", "Rule | Passed by", check_rows(found), RANKS_NOTHING if is_world else "")
    outcome.tables += [checks, table]
    print0(f"golf_judge: {size:,} of {scale.bytes:,} bytes, {found.bpb:.4f} bits per byte")
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
