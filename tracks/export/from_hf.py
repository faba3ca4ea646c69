"""A folder that `tracks.export.export` wrote with modeling_nanochat.py, read back; others may have fine-tuned it."""

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.models import config_of, new_model
from nanochat.paths import read_json, stage_dir, tokenizer_file
from nanochat.quantized import Tensors
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer
from tracks.export.hf import VERSION
from tracks.export.tokenizers import read_hf

if TYPE_CHECKING:
    from nanochat.checkpoint import NamedTensors


def read_folder(folder: Path) -> tuple[Record, Tensors, Tokenizer]:
    """Return the manifest for a checkpoint, the weights in fp32 and the tokenizer; UserError for another folder."""
    settings = read_json(folder / "config.json")
    if settings.get("version") != VERSION:
        raise UserError(
            f"{folder} is not an export with version {VERSION} of modeling_nanochat.py; python -m tracks.bases.bring"
            " takes models of other kinds"
        )
    record = settings["manifest"]
    if record["stage"] not in MODELS.values():  # it names the folder that is written to
        stages = ", ".join(MODELS.values())
        raise UserError(f"{folder} has a model of the stage {record['stage']}, which is none of {stages}")
    record["exported"] = record.pop("sha256")  # of the manifest that was exported
    weights = {}
    for path in folder.glob("*.safetensors"):
        try:
            weights |= {name: tensor.float() for name, tensor in load_file(path).items()}
        except SafetensorError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    try:
        new_model(config_of(record)).load_state_dict(weights, assign=True)  # compares names and shapes
    except RuntimeError as error:
        # The first line names the class of the model, if there are others.
        first, _, others = str(error).partition("\n")
        fault = others.partition("\n")[0] or first
        raise UserError(f"{folder} has other weights than config.json says: {fault}") from None
    tokenizer = read_hf(folder / "tokenizer.json")
    if tokenizer.content_hash != record["tokenizer"]["hash"]:
        raise UserError(f"{folder} has another tokenizer than the model was trained with")
    return record, weights, tokenizer


def save_imported(record: Record, weights: "NamedTensors", tokenizer: Tokenizer, tag: str, step: int) -> Path:
    """Write a checkpoint without optimizer state, and its tokenizer, under a new tag; return the run's folder."""
    from nanochat.checkpoint import Saver, hold
    from nanochat.paths import saved_steps
    from nanochat.runtime import return_freed_memory

    folder = stage_dir(record["stage"], tag)
    tokenizer_path = tokenizer_file(tag)
    # Other stages of the tag may use this file.
    existed = tokenizer_path.exists()
    made = [place for place in (folder, tokenizer_path.parent) if not place.exists()]
    if existed and Tokenizer.load(tokenizer_path).content_hash != tokenizer.content_hash:
        raise UserError(f"{tokenizer_path} is another tokenizer, use another --tag")
    with hold(folder):
        if saved_steps(folder):
            raise UserError(f"{folder} holds a run, use another --tag")
        # Where all stages of the tag find it; before the weights take memory.
        record |= {"tokenizer": {"tag": tag, "hash": tokenizer.save(tokenizer_path)}}
        return_freed_memory()
        try:
            with Saver(folder) as saver:
                saver.save(step, weights, [], record, given=True)
        except Exception:  # a damaged weight, which may be read only now, a full disk, no memory
            # After Ctrl-C, which is no Exception, the checkpoint may still be written, and needs its tokenizer.
            if not existed:
                tokenizer_path.unlink()
            for place in made:
                (place / "lock").unlink(missing_ok=True)
                if not any(place.iterdir()):
                    place.rmdir()
            raise
    return folder
