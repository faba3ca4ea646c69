"""Import a checkpoint of the public nanochat, to evaluate, chat with, fine-tune or export it.

python -m tracks.export.import_nanochat --checkpoint=model_021400.pt --tokenizer=tokenizer.tiktoken --tag=d20
"""

from dataclasses import asdict
from pathlib import Path

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.settings import TagSettings
from nanochat.stages import MODELS, Source


@options("files")
class Config(TagSettings):
    """Read model_*.pt, meta_*.json and a tokenizer; write a checkpoint of a stage."""

    checkpoint: str = option("", "a model_*.pt, with meta_*.json in the same folder")
    tokenizer: str = option("tokenizer.json", "our file, or tiktoken's ranks; a pickle is not read")
    source: Source = option("base", "stage of the model", short="-i")
    tag = option("", "tag of the new run")


def main(config: Config) -> None:
    from nanochat.models import record_of
    from nanochat.train import State
    from tracks.export.from_hf import save_imported
    from tracks.export.from_nanochat import read_checkpoint
    from tracks.export.tokenizers import read_tokenizer

    # Read and check everything before anything is written.
    path = Path(config.checkpoint).expanduser()
    step = path.stem.removeprefix("model_")
    if not step.isdecimal():
        raise UserError(f"--checkpoint={path} is not named like model_021400.pt")
    step = int(step)
    tokenizer = read_tokenizer(Path(config.tokenizer).expanduser())
    model_config, weights, settings = read_checkpoint(path)
    if tokenizer.vocab_size != model_config.vocab_size:
        sizes = f"{tokenizer.vocab_size:,} ids and the model {model_config.vocab_size:,}"
        raise UserError(f"--tokenizer={config.tokenizer} has {sizes}: use the tokenizer of this model")
    # The manifest of a checkpoint without optimizer state.
    record = {
        "stage": MODELS[config.source],
        "parent": None,
        "config": settings,
        "data": None,
        "source": None,
        "loop": asdict(State(step=step)),
        "dtype": "fp32",
        "model": record_of(model_config),
    }
    folder = save_imported(record, weights, tokenizer, config.tag, step)
    print0(f"import: {path.name} is {folder}, step {step:,}")


if __name__ == "__main__":
    run_script(main)
