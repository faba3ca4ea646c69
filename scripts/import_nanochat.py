"""Make a checkpoint of the public nanochat one of ours, to evaluate, to talk to, to fine-tune, to export.

python -m scripts.import_nanochat --checkpoint=base_checkpoints/d20 --tokenizer=tokenizer.tiktoken --tag=d20
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.paths import stage_dir
from nanochat.stages import MODELS


@dataclass(frozen=True)
class Config:
    """Read model_*.pt and meta_*.json, and a tokenizer; write a checkpoint of a stage."""

    checkpoint: str = option("", "a model_*.pt, or the folder of such", group="files", unit="PATH")
    checkpoint_step: Count = option(-1, "of which step, -1: the newest", group="files", least=-1)
    tokenizer: str = option(
        "",
        "our tokenizer.json, that of `tokenizers`, or tiktoken's ranks; a pickle is not read",
        group="files",
        unit="FILE",
    )
    source: str = option("base", f"what it is: {', '.join(MODELS)}", group="model", short="-i")
    tag: str = option("", "name for it, as of a run", group="model", short="-g")

    def __post_init__(self):
        if self.source not in MODELS:
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")
        for name in ("checkpoint", "tokenizer", "tag"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is needed, see --help")


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.checkpoint import Saver, check_free_space, hold, rng_state, steps
    from nanochat.export import from_nanochat as old_checkpoint
    from nanochat.export import tokenizers as tokenizer_files
    from nanochat.tokenizer import Tokenizer
    from nanochat.train import State

    stage = MODELS[config.source]
    folder, vocabulary = stage_dir(stage, config.tag), stage_dir("tok_train", config.tag) / "tokenizer.json"
    step = None if config.checkpoint_step < 0 else config.checkpoint_step
    path, step = old_checkpoint.find(Path(config.checkpoint).expanduser(), step)
    tokenizer = tokenizer_files.read(Path(config.tokenizer).expanduser())
    shape, weights, settings = old_checkpoint.read(path)
    if tokenizer.vocab_size != shape.vocab_size:
        sizes = f"{tokenizer.vocab_size:,} ids and the model {shape.vocab_size:,}"
        raise ValueError(f"--tokenizer={config.tokenizer} has {sizes}: it is another model's")
    if vocabulary.exists() and Tokenizer.load(vocabulary).content_hash != tokenizer.content_hash:
        raise ValueError(f"{vocabulary} is another tokenizer, take another --tag")
    check_free_space(folder, sum(weight.nbytes for weight in weights.values()))
    with hold(folder):
        if steps(folder):
            raise ValueError(f"{folder} holds a run, take another --tag")
        tokenizer.save(vocabulary)
        about = {"stage": stage, "parent": None, "config": settings, "data": None, "source": None, "rng": rng_state()}
        about |= {"tokenizer": {"tag": config.tag, "hash": tokenizer.content_hash}, "loop": asdict(State(step=step))}
        with Saver(folder) as saver:
            saver.save(step, weights, [], about | {"dtype": "fp32", "model": asdict(shape)})
    short = sorted({window for window in shape.windows if window})
    if short:
        print0(f"windows: the short layers see {short[0]:,} keys, and not {short[0] + 1:,} as there")
    print0(f"import: {path.name} is {folder}, step {step:,}")


if __name__ == "__main__":
    run(main, Config)
