"""Quantize a golf entry's model and pack it with its vocabulary into one file, on the clock.

python -m tracks.golf.pack --tag=golf-1
"""

import math
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir, write_bytes
from nanochat.settings import TagSettings
from nanochat.statistics import measured
from tracks.golf.entries import SCALES, ScaleName, code_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from nanochat.checkpoint import Checkpoint
    from nanochat.gpt import GPT, GPTConfig
    from nanochat.quant import Recipes
    from nanochat.quantized import Tensors
    from nanochat.tokenizer import Tokenizer
    from tracks.golf.artifact import Artifact

FILE = "artifact.golf"
CALIBRATION = 65536  # tokens of training text for gptq
ROWS = 8  # of a batch
ROUNDS = 5  # of the search for the finest steps that fit
ROOM_LEFT = 0.002  # share of the room that may stay empty
FINEST = 0.25  # factor for the clips
COARSEST = 4.0
OTHER_STEPS = 0.1  # in the logarithm, about 10 %: training did not get used to these steps
Packed = tuple[int, bytes]  # bytes of the model, which are the file without its vocabulary; the file


@options("golf")
class Config(TagSettings):
    """Quantize and pack a trained entry."""

    tag = "golf"
    scale: ScaleName = option("embedded", "budget")
    plan: str = option("int8-row", "quantization plan: PATTERN=RECIPE,…")
    # The finest steps of the codes that fit; recipes without a clip have no steps to choose.
    model_bytes: Count = option(
        -1, "bytes to fill by scaling clips (-1: the budget without the code; 0: leave the clips as they are)"
    )
    eval_bytes: Count = option(0, "bytes of validation text, for scoring too (0: the scale's)")


def calibration_batches(checkpoint: "Checkpoint", model: "GPT") -> "list[Tensor]":
    """Return rows of training text, from its beginning."""
    from nanochat.dataloader import TextLoader, corpus_of
    from nanochat.models import tokenizer_of

    length = model.config.max_seq_len
    corpus = corpus_of(checkpoint.manifest)
    seed = checkpoint.manifest["config"]["seed"]
    with TextLoader(corpus, tokenizer_of(checkpoint), ROWS, length, seed=seed) as source:
        return [next(source)[0] for _ in range(max(1, CALIBRATION // (ROWS * length)))]


def clear_padding(model: "GPT") -> None:
    """Set the rows beyond the vocabulary to zero."""
    for name, value in model.state_dict().items():
        if name.startswith(("embed.", "head.", "value_embeds.")):
            value[model.config.vocab_size :] = 0


def without_defaults(config: "GPTConfig") -> Record:
    """Return the fields of a config that are not the default."""
    return {name: value for name, value in asdict(config).items() if value != getattr(type(config), name)}


def vocabulary_of(tokenizer: "Tokenizer") -> Record:
    """Return the arguments with which rustbpe makes the tokenizer."""
    core = tokenizer.bpe
    return {"merges": core.merges.tolist(), "special_tokens": list(core.special_tokens), "pattern": core.pattern}


def tensors_table(packed: "Artifact") -> Record:
    """Return the table of the quantized tensors: entropy of the codes, bytes by the entropy, and real ones."""
    from nanochat.quant import Quantized, entropy
    from tracks.golf.artifact import compress

    rows = []
    for name, recipe in packed.recipes.items():
        matrix = packed.stored[name]
        assert isinstance(matrix, Quantized)  # it has a recipe
        count = matrix.codes.numel()
        bits = entropy(matrix.codes)
        size = len(compress(matrix.unsigned().tobytes())[-1])
        rows.append([name, recipe, count, bits, bits * count / 8, size])
    columns = "Tensor | Recipe | Values:,d | Entropy, bits:.3f | Entropy, bytes:,.0f | Bytes, compressed alone:,d"
    return table_of("Quantized tensors", columns, rows)


def pack_scaled(
    model: "GPT", tokenizer: "Tokenizer", recipes: "Recipes", hessians: "Tensors", factor: float = 1.0
) -> Packed:
    """Return a file with the model, whose recipes have their clips times a factor."""
    from nanochat.quant import quantize_weights, scale_clip
    from tracks.golf.artifact import read_artifact, write_artifact

    scaled = {name: scale_clip(recipe, factor) for name, recipe in recipes.items()}
    stored = quantize_weights(model.state_dict(), scaled, hessians)
    data = write_artifact(without_defaults(model.config), stored, vocabulary_of(tokenizer), scaled)
    return len(data) - read_artifact(data).bytes["tokenizer"], data


def pack_model(config: Config, checkpoint: "Checkpoint", model: "GPT", tokenizer: "Tokenizer") -> Packed:
    """Return the model quantized by the plan; clips are scaled until the file fills the bytes."""
    from nanochat import quant

    matrices = quant.matrices(model)
    recipes = quant.assign(config.plan, matrices)
    hessians = {}
    if "gptq" in config.plan:
        hessians = quant.collect_hessians(model, calibration_batches(checkpoint, model))

    # A function of the factor for the clips.
    pack = partial(pack_scaled, model, tokenizer, recipes, hessians)
    codes = sum(matrix.numel() for name, matrix in matrices.items() if "clip" in recipes[name])
    room = config.model_bytes
    if not room or not codes:  # nothing can be scaled; the code is not measured, which would take time on the clock
        return pack(1.0)
    if room < 0:
        room = SCALES[config.scale].bytes - code_bytes()
    return fill_room(pack, room, codes)


def fill_room(pack: "Callable[[float], Packed]", room: int, codes: int) -> Packed:
    """Return the packed model with the finest codes that fit; if none fits, the last one tried."""
    factor = 1.0
    tried = []
    for _ in range(ROUNDS):
        tried.append(pack(factor))
        over = tried[-1][0] - room
        if -ROOM_LEFT * room <= over <= 0:
            break
        # A code needs one bit less if the steps are twice as large.
        factor *= 2 ** (8 * (over + ROOM_LEFT * room / 2) / codes)
        factor = min(max(factor, FINEST), COARSEST)
    return max((packed for packed in tried if packed[0] <= room), default=tried[-1])


def step_ratio(packed: "Artifact", qat: str) -> float:
    """Return by how much the steps of a file's codes are larger than those that training rounded to; 1: no clips.

    qat: the plan of the training. Of matrices with unlike ratios, the one that is farthest off.
    """
    from nanochat.quant import assign, parse_recipe

    ratios = [1.0]
    for name, recipe in assign(qat, packed.recipes).items():
        trained, packs = parse_recipe(recipe).clip, parse_recipe(packed.recipes[name]).clip
        if trained and packs:
            ratios.append(packs / trained)
    return max(ratios, key=lambda ratio: abs(math.log(ratio)))


def main(config: Config) -> None:
    started = time.monotonic()
    from nanochat.dataloader import corpus_of
    from nanochat.evals.bpb import read_text, text_bpb
    from nanochat.models import load_model
    from nanochat.quant import scale_clip
    from nanochat.runtime import setup
    from tracks.golf.artifact import read_artifact
    from tracks.golf.model import require_golf

    scale = SCALES[config.scale]
    outcome = Outcome.begin("golf_pack", config.tag, config)
    with setup("cpu", "fp32") as runtime:
        model, tokenizer, checkpoint = load_model("base_train", config.tag, -1, runtime)
        loop = checkpoint.manifest["loop"]
        trained = checkpoint.manifest["config"]
        require_golf(model.config)
        if loop["progress"] < 1:
            raise UserError(f"the run {config.tag} has not ended: run tracks.golf.train again")
        clear_padding(model)
        size, data = pack_model(config, checkpoint, model, tokenizer)
        # Into another file: a packing that takes too long leaves an earlier artifact alone.
        new = stage_dir("golf_pack", config.tag) / f"{FILE}.new"
        write_bytes(new, data)
        packing = time.monotonic() - started
        if loop["seconds"] + packing > scale.seconds:
            new.unlink()
            clocks = f"training took {loop['seconds']:.1f} s and packing {packing:.1f} s"
            raise UserError(f"{clocks}, over the limit of {scale.seconds:g} s")
        # No longer on the clock.
        path = new.replace(new.with_suffix(""))
        corpus = corpus_of(checkpoint.manifest, name=config.tag)
        text = read_text(corpus.batches("val"), tokenizer, config.eval_bytes or scale.eval_bytes)
        before = text_bpb(model, text, model.config.max_seq_len, ROWS, runtime).value

    artifact = read_artifact(data)
    ratio = step_ratio(artifact, trained["qat"]) if trained.get("qat") else 1.0
    if abs(math.log(ratio)) > OTHER_STEPS:
        better = scale_clip(trained["qat"], ratio)
        print0(
            f"the file's codes have {ratio:.2f} times the steps that the model was trained with: try --qat='{better}'"
        )
    parameters = sum(value.numel() for value in model.parameters())
    shards = checkpoint.manifest["num_shards"]
    outcome.metrics = {
        "Scale": config.scale,
        "Data": trained["data"],
        # A mix has a number for each part: 0, the default, has the same text for validation.
        "Shards": shards if isinstance(shards, int) else 0,
        "Steps": loop["step"],
        "Tokens": loop["tokens"],
        "Tokenizer": tokenizer.content_hash[:12],
        "Model bytes": size,
        "Parameters": parameters,
        "Bits per parameter": measured(8 * size / parameters, spec=".2f"),
        "Training seconds": measured(loop["seconds"], spec=".1f"),
        "Packing seconds": measured(packing, spec=".1f"),
        "bpb before quantization": measured(before),
    }
    outcome.tables = [tensors_table(artifact)]
    outcome.add_artifact(path)
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
