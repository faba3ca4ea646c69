"""Read a folder back that tracks.export.export wrote, as it left here or fine-tuned by others.

python -m tracks.export.import_hf --folder=my-model --tag=home
"""

from pathlib import Path

from nanochat.config import option, options, run_script
from nanochat.log import print0
from nanochat.settings import TagSettings


@options("files")
class Config(TagSettings):
    """Read weights, tokenizer and manifest of a folder; write a checkpoint of the stage that it was exported from."""

    folder: str = option("", "folder written by tracks.export.export --format=hf, with modeling_nanochat.py")
    tag = option("", "tag of the new run")


def main(config: Config) -> None:
    from tracks.export.from_hf import read_folder, save_imported

    record, weights, tokenizer = read_folder(Path(config.folder).expanduser())
    folder = save_imported(record, weights, tokenizer, config.tag, record["step"])
    print0(f"import: {folder}, exported from the manifest {record['exported']}")


if __name__ == "__main__":
    run_script(main)
