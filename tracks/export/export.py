"""Write a trained model as files for other programs, load them again and compare.

python -m tracks.export.export --source=sft --tag=d8 --format=hf --out=my-model
python -m tracks.export.export -i base --tag=d8 --format=gguf
"""

from pathlib import Path
from typing import Literal

from nanochat.config import option, options, run_script
from nanochat.log import print0
from nanochat.paths import base_dir
from nanochat.settings import ModelChoice


@options("files")
class Config(ModelChoice):
    """Export a model, load it with the other program, and keep the files if both compute the same."""

    format: Literal["hf", "gguf", "tokenizer"] = option(
        "hf", "hf (transformers), gguf (llama.cpp), or only the tokenizer of hf"
    )
    out: str = option("", "new folder to write (default: one in NANOCHAT_BASE_DIR)")


def main(config: Config) -> None:
    from nanochat.models import load_chosen
    from nanochat.runtime import setup
    from tracks.export import gguf, hf

    writers = {"hf": hf.write_folder, "tokenizer": hf.write_tokenizer, "gguf": gguf.write_gguf}
    name = f"{config.tag}-{config.source}"
    out = Path(config.out).expanduser() if config.out else base_dir() / f"export/{name}-{config.format}"
    # Comparisons need fp32 on both sides.
    with setup("cpu", "fp32") as runtime:
        model, tokenizer, checkpoint = load_chosen(config, runtime)
        exported = hf.Exported(name, model, tokenizer, checkpoint.manifest)
        hf.export(writers[config.format], exported, out)
    print0(f"export: {out}")


if __name__ == "__main__":
    run_script(main)
