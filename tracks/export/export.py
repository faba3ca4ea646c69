"""Write a trained model as files for other programs, load them again and compare.

python -m tracks.export.export --source=sft --tag=d8 --format=hf --out=my-model
python -m tracks.export.export --source=sft --tag=d8 --dtype=bf16
python -m tracks.export.export -i base --tag=d8 --format=gguf
python -m tracks.export.export --source=sft --tag=d8 --push=user/name
"""

from pathlib import Path
from typing import Literal

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.paths import base_dir
from nanochat.settings import ModelChoice
from tracks.export.push import check_access, check_repo, push


@options("files")
class Config(ModelChoice):
    """Export a model, load it with the other program, and keep the files if both compute the same."""

    format: Literal["hf", "gguf", "tokenizer"] = option(
        "hf", "hf (transformers), gguf (llama.cpp), or only the tokenizer of hf"
    )
    out: str = option("", "new folder to write (default: one in NANOCHAT_BASE_DIR)")
    dtype: Literal["fp32", "bf16"] = option("fp32", "of the weights in the files: fp32, or bf16 for --format=hf")
    push: str = option("", "also upload it to the hub, to this user/name: private, with the token in HF_TOKEN")
    public: bool = option(False, "let everybody see what --push uploads; a repository that exists keeps its visibility")

    def __post_init__(self) -> None:
        if self.push:
            check_repo(self.push)
        elif self.public:
            raise UserError("--public is for an upload: add --push=user/name")
        if self.dtype != "fp32" and self.format != "hf":
            raise UserError(f"--dtype={self.dtype} is for --format=hf (llama.cpp's own program quantizes GGUF files)")
        if self.dtype != "fp32" and self.quant:
            raise UserError(f"--quant={self.quant} has rounded the weights already: leave --dtype={self.dtype} out")


def main(config: Config) -> None:
    from nanochat.models import load_chosen
    from nanochat.runtime import setup
    from tracks.export import gguf, hf

    if config.push:
        check_access(config.push)
    writers = {"hf": hf.write_folder, "tokenizer": hf.write_tokenizer, "gguf": gguf.write_gguf}
    name = f"{config.tag}-{config.source}"
    out = Path(config.out).expanduser() if config.out else base_dir() / f"export/{name}-{config.format}"
    # Comparisons need fp32 on both sides.
    with setup("cpu", "fp32") as runtime:
        model, tokenizer, checkpoint = load_chosen(config, runtime, in_floats=True)
        exported = hf.Exported(name, model, tokenizer, checkpoint.manifest, config.dtype)
        hf.export(writers[config.format], exported, out)
    print0(f"export: {out}")
    # Only what was compared, and then perhaps rounded, is there to be uploaded.
    if config.push:
        print0(f"pushed to {push(out, config.push, config.public)}")


if __name__ == "__main__":
    run_script(main)
