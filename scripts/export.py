"""Write a trained model as files for other programs, and see that they compute the same.

python -m scripts.export --source=sft --tag=d8 --format=hf --out=my-model
python -m scripts.export -i base --tag=d8 --format=gguf
"""

from dataclasses import dataclass
from pathlib import Path

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.paths import base_dir
from nanochat.stages import MODELS

FORMATS = ("hf", "tokenizer", "tiktoken", "gguf", "gguf-ready")


@dataclass(frozen=True)
class Config:
    """Export a model, load it again with the other program, and compare the two."""

    format: str = option(
        "hf", "hf (transformers), gguf (llama.cpp); tokenizer (of hf) or tiktoken, alone", group="files"
    )
    out: str = option("", "new folder for them; empty: one below NANOCHAT_BASE_DIR", group="files", unit="FOLDER")
    source: str = option("sft", f"stage whose model to take: {', '.join(MODELS)}", group="model", short="-i")
    tag: str = option("d12", "run whose model to take", group="model", short="-g")
    step: Count = option(-1, "its checkpoint, -1: the newest", group="model", least=-1, short="-s")

    def __post_init__(self):
        for name, known in (("format", FORMATS), ("source", MODELS)):
            if getattr(self, name) not in known:
                raise ValueError(f"--{name}={getattr(self, name)} is not one of {', '.join(known)}")


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.export.hf import Exported, corpus_lines, export
    from nanochat.export.polyglot import lines
    from nanochat.restore import load_model
    from nanochat.runtime import setup

    name = f"{config.tag}-{config.source}"
    out = Path(config.out).expanduser() if config.out else base_dir() / f"export/{name}-{config.format}"
    with setup("cpu", "fp32") as runtime:
        step = None if config.step < 0 else config.step
        model, tokenizer, checkpoint = load_model(MODELS[config.source], config.tag, step, runtime)
        texts = [*lines(tuple(tokenizer.special_tokens)), *corpus_lines(checkpoint.manifest)]
        what = Exported(name, config.tag, model, tokenizer, checkpoint.manifest, texts, base_dir())
        export(config.format, what, out)
    print0(f"export: {out}")


if __name__ == "__main__":
    run(main, Config)
