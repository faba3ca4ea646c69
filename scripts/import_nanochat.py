"""Import a checkpoint of the public nanochat, to evaluate, chat with, fine-tune or export it.

python -m scripts.import_nanochat --checkpoint=model_021400.pt --tokenizer=tokenizer.tiktoken --tag=d20
"""

from dataclasses import asdict
from pathlib import Path

from nanochat.config import changed, option, options, run
from nanochat.log import print0
from nanochat.paths import stage_dir
from nanochat.settings import TagSettings
from nanochat.stages import MODELS, Source


@options("files")
class Config(TagSettings):
    """Read model_*.pt, meta_*.json and a tokenizer; write a checkpoint of a stage."""

    checkpoint: str = option("", "a model_*.pt, with meta_*.json beside it")
    tokenizer: str = option("", "our tokenizer.json or tiktoken's ranks; a pickle is not read")
    source: Source = option("base", "stage of the model", short="-i")
    tag = changed("", text="tag of the new run")

    def __post_init__(self):
        for name in ("checkpoint", "tokenizer", "tag"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is needed, see --help")


def main(config: Config) -> None:
    # Imported here because --help must be fast.
    from nanochat.checkpoint import Saver, hold, steps
    from nanochat.export.from_nanochat import read_checkpoint
    from nanochat.export.tokenizers import read_tokenizer
    from nanochat.models import describe_config
    from nanochat.tokenizer import Tokenizer
    from nanochat.train import State

    # Read and check everything before anything is written.
    stage = MODELS[config.source]
    folder = stage_dir(stage, config.tag)
    tokenizer_path = stage_dir("tok_train", config.tag) / "tokenizer.json"
    path = Path(config.checkpoint).expanduser()
    step = path.stem.removeprefix("model_")
    if not step.isdecimal():
        raise ValueError(f"--checkpoint={path} is not named like model_021400.pt")
    step = int(step)
    tokenizer = read_tokenizer(Path(config.tokenizer).expanduser())
    model_config, weights, settings = read_checkpoint(path)
    if tokenizer.vocab_size != model_config.vocab_size:
        sizes = f"{tokenizer.vocab_size:,} ids and the model {model_config.vocab_size:,}"
        raise ValueError(f"--tokenizer={config.tokenizer} has {sizes}: take the tokenizer of this model")
    # Other stages of the tag may use this file.
    if tokenizer_path.exists() and Tokenizer.load(tokenizer_path).content_hash != tokenizer.content_hash:
        raise ValueError(f"{tokenizer_path} is another tokenizer, take another --tag")
    with hold(folder):
        if steps(folder):
            raise ValueError(f"{folder} holds a run, take another --tag")
        tokenizer.save(tokenizer_path)  # where all stages of the tag find it
        # The manifest of a checkpoint without optimizer state.
        record = {
            "stage": stage,
            "parent": None,
            "config": settings,
            "data": None,
            "source": None,
            "tokenizer": {"tag": config.tag, "hash": tokenizer.content_hash},
            "loop": asdict(State(step=step)),
            "dtype": "fp32",
            "model": describe_config(model_config),
        }
        with Saver(folder) as saver:
            saver.save(step, weights, [], record)
    print0(f"import: {path.name} is {folder}, step {step:,}")


if __name__ == "__main__":
    run(main, Config)
