"""The one place that makes and loads models: a --model value or a manifest to a config, a config to a model.

`build_model` makes a model to train, `load_model` a trained one for inference, and `load_chosen` the one that a command
line names. checkpoint.py reads and writes the files.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nanochat import fp8, registry
from nanochat.attention import FLASH, find_path
from nanochat.checkpoint import MODEL, Checkpoint, load, load_manifest, newest
from nanochat.config import check_names
from nanochat.errors import UserError
from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionGPT
from nanochat.log import Record, print0
from nanochat.paths import base_dir, saved_steps, stage_dir, step_dir, tokenizer_file
from nanochat.runtime import Runtime
from nanochat.settings import ModelChoice, PretrainSettings
from nanochat.stages import MODELS, STAGES
from nanochat.tokenizer import Tokenizer

Value = bool | int | float | str  # of a config's field
Fields = Mapping[str, Value]

# Tokens of a row from which torch's attention trains faster on a CPU than the compiled formula.
LONG_ROW = 1024

KINDS: dict[str, type[GPT]] = {"gpt": GPT, "induction": InductionGPT}  # registry.MODELS has more
# The fields of each kind's config that GPTConfig does not have, with the value that changes nothing. Those of tracks
# have the field of `induction` too.
OWN_FIELDS: dict[str, Fields] = {"induction": {"induction": False}, **registry.MODEL_FIELDS}
IDLE: Fields = {name: value for own in OWN_FIELDS.values() for name, value in own.items()}
# Other flags set these fields, so --model does not change them.
FLAG_FIELDS = ("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id")
# The same for fields with a flag of a track's own training script, and the script.
TRACK_FLAG_FIELDS = dict.fromkeys(registry.MODEL_FIELDS["recursive"], "tracks.recursion.train")
# Tricks that other programs do not know: a model is exported only if it has these values (tracks/export/hf.py).
PLAIN: Fields = {
    "window_pattern": "L",
    "residual_lambdas": False,
    "x0_lambdas": False,
    "value_embeds": False,
    "smear": False,
    "induction": False,
    "backout": False,
}
# --model: name, and the fields that differ from the defaults; registry.CONFIGURATIONS has more.
CONFIGURATIONS: dict[str, Fields] = {
    "reference": {},
    "october-2025": {**PLAIN, "mlp": "relu2", "qk_scale": 1.0, "rope_base": 10_000.0},
    # The reference, changed so that the model learns within few steps to search the context.
    "induction": {"induction": True, "tie_embeddings": True},
    # The architecture that other programs know as Qwen3, with the tricks that fit into its weights. Its MLP has three
    # matrices in place of two, with as many weights together.
    "portable": {**PLAIN, "residual_lambdas": True, "mlp": "swiglu", "mlp_ratio": 8 / 3, "softcap": 0.0},
}


# ---- kinds of model ----


def kind_class(kind: str) -> type[GPT]:
    """Return the class of models of a kind."""
    if kind in KINDS:
        return KINDS[kind]
    check_names("the kind of model", [kind], [*KINDS, *registry.MODELS.modules])
    return registry.load(registry.MODELS, kind)


def model_class(config: GPTConfig) -> type[GPT]:
    """Return the class of models with this config."""
    return kind_class(config.kind)


def kind_with(names: Collection[str]) -> str:
    """Return the first kind of model whose config has all these fields; UserError if none has them together."""
    own = set(names) - {field.name for field in fields(GPTConfig)}
    if not own:
        return "gpt"
    for kind, more in OWN_FIELDS.items():
        if own <= {"induction", *more}:
            return kind
    raise UserError(f"no kind of model has these fields together: {', '.join(sorted(own))}")


def config_with(values: Fields) -> GPTConfig:
    """Return the config with these values, of the first kind that has all fields which change something."""
    active: dict[str, Any] = _active(values)
    return kind_class(kind_with(active)).config_class(**active)


def _active(values: Fields) -> dict[str, Value]:
    """Return the values without those of a kind's own fields that change nothing."""
    return {name: value for name, value in values.items() if name not in IDLE or value != IDLE[name]}


# ---- manifests ----


def record_of(config: GPTConfig) -> Record:
    """Return the entry "model" of a manifest: the fields, and the kind unless it is a plain GPT."""
    return asdict(config) | ({} if config.kind == GPTConfig.kind else {"kind": config.kind})


def config_of(manifest: Record) -> GPTConfig:
    """Return the model config described by a checkpoint's manifest."""
    record = dict(manifest["model"])
    if "kind" not in record:
        record = _with_kind(record)
    try:
        return kind_class(record.pop("kind")).config_class(**record)
    except TypeError:
        raise UserError("another version of this code has written the checkpoint: train the model again") from None


def _with_kind(record: Record) -> Record:
    """Return the entry of a manifest without a kind as it is written today.

    Until each kind had its own config, GPTConfig had the fields of all kinds, and most of them changed nothing.
    """
    if not record.get("supervision"):  # no recursion: its other fields have no effect
        record = {name: value for name, value in record.items() if name not in OWN_FIELDS["recursive"]}
    record = _active(record)
    known = {*IDLE, *(field.name for field in fields(GPTConfig))}
    return record | {"kind": kind_with(record.keys() & known)}  # a field that nobody knows is refused later


# ---- --model ----


def configuration(name: str) -> Fields:
    """Return the fields that a name for --model stands for."""
    if name in CONFIGURATIONS:
        return CONFIGURATIONS[name]
    check_names("--model:", [name], [*CONFIGURATIONS, *registry.CONFIGURATIONS.modules])
    return registry.load(registry.CONFIGURATIONS, name)


def config_fields(text: str) -> dict[str, Value]:
    """Return the config fields for a --model value: a name in CONFIGURATIONS, then changes to single fields.

    "reference,backout=false,softcap=0" is the reference with two fields changed. Sizes have separate flags.
    """
    name, *changes = text.split(",")
    changed = dict(configuration(name))
    fixed = {*FLAG_FIELDS, *TRACK_FLAG_FIELDS}
    usual = {name: value for name, value in {**asdict(GPTConfig()), **IDLE}.items() if name not in fixed}
    for change in changes:
        field, _, value = change.partition("=")
        if field in FLAG_FIELDS:
            raise UserError(f"--model={text}: {field} is set by its own flag, see --help")
        if field in TRACK_FLAG_FIELDS:
            script = TRACK_FLAG_FIELDS[field]
            raise UserError(f"--model={text}: {field} is set by a flag of python -m {script}, see its --help")
        check_names(f"--model={text}: the field", [field], usual)
        kind = type(usual[field])
        try:
            changed[field] = {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise UserError(f"--model={text}: {field} cannot be {value}, write a {kind.__name__}") from None
    return changed


# ---- making models ----


def new_model(config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> GPT:
    """Return a model for the config that has shapes alone: its `to_empty` takes memory on a device."""
    with torch.device("meta"):
        return model_class(config)(config, attention, checkpointing)


def planned_model(config: PretrainSettings, vocab_size: int, bos_id: int) -> GPT:
    """Return the model that the flags describe, with shapes alone; a width or kv_heads 0 follows from other sizes."""
    head_dim = config.head_dim
    width = config.width or math.ceil(config.depth * config.aspect_ratio / head_dim) * head_dim
    if width % head_dim:
        raise UserError(f"--width={width} is not a multiple of --head-dim={head_dim}")
    heads = width // head_dim
    kv_heads = config.kv_heads or heads
    # Each key head serves as many query heads.
    legal = [count for count in range(1, heads + 1) if heads % count == 0]
    if kv_heads not in legal:
        raise UserError(f"--kv-heads={kv_heads} does not divide {heads} heads: use one of {legal}")
    sizes: dict[str, Any] = {"depth": config.depth, "width": width, "heads": heads, "kv_heads": kv_heads}
    sizes |= {"vocab_size": vocab_size, "max_seq_len": config.max_seq_len, "bos_id": bos_id}
    chosen = config_fields(config.model) | sizes | config.model_fields
    if config.window_pattern:
        chosen["window_pattern"] = config.window_pattern
    return new_model(config_with(chosen))


def build_model(
    config: GPTConfig,
    runtime: Runtime,
    weights: Checkpoint | int,
    *,
    checkpointing: bool = False,
    in_fp8: bool = False,
    shard_weights: bool = False,
    row_length: int = 0,
) -> GPT:
    """Return a model on the runtime's device.

    weights: a checkpoint's, or the seed of new ones. row_length: tokens of a row in training; 0: for inference.
    """
    model = _empty_model(config, runtime, checkpointing, row_length)
    if shard_weights:
        return _sharded(model, runtime, weights, in_fp8)
    model.to_empty(device=runtime.device)
    if isinstance(weights, Checkpoint):
        model.load_state_dict(weights.model_tensors())
        _check_finite(dict(model.named_parameters()), weights, runtime)
    else:
        initialize(model, weights, runtime)
    if in_fp8:
        print0(f"fp8: {len(fp8.convert(model))} layers")
    return model


@torch.no_grad
def _check_finite(parts: dict[str, torch.Tensor], checkpoint: Checkpoint, runtime: Runtime) -> None:
    """Raise a UserError on all ranks if a weight of a checkpoint is not finite: whatever it computed would be NaN.

    parts: what this rank has of the weights.
    """
    parts = {name: part for name, part in parts.items() if part.numel()}
    bad = [name for name, part in parts.items() if not torch.isfinite(part).all()]
    found = next(filter(None, runtime.all_gather(bad)), [])
    if not found:
        return
    before = [step for step in saved_steps(checkpoint.path.parent) if step < checkpoint.step]
    advice = f"the step before is {before[-1]} (--resume={before[-1]} goes back to it)" if before else "train it again"
    raise UserError(f"{checkpoint.path} has weights that are not finite, such as {found[0]}: {advice}")


def initialize(model: GPT, seed: int, runtime: Runtime) -> None:
    """Set every parameter from the seed. Each rank draws a share of them, which takes a CPU long."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    shares: list[list[str]] = [[] for _ in range(runtime.world_size)]
    drawn = [0] * runtime.world_size
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        rank = drawn.index(min(drawn))
        shares[rank].append(name)
        drawn[rank] += sizes[name]
    if shares[runtime.rank]:
        model.init_weights(seed, shares[runtime.rank])
    for rank, names in enumerate(shares):
        for name in names:
            runtime.copy_from(rank, model.get_parameter(name).data)


def _sharded(model: GPT, runtime: Runtime, weights: Checkpoint | int, in_fp8: bool) -> GPT:
    """Return a model whose weights are divided among the ranks; no rank ever holds all of them at once."""
    from nanochat.sharding import Shards  # loaded with its flag alone

    if runtime.world_size == 1 or runtime.dtype == torch.float16:
        raise UserError("--shard-weights needs several ranks (torchrun starts them), and bf16 or fp32: leave it out")
    if in_fp8:
        print0(f"fp8: {len(fp8.convert(model, device=runtime.device))} layers")
    if isinstance(weights, Checkpoint):
        with weights.reading_weights() as read:
            shards = Shards(model, read, runtime)
        pieces = {piece.names[0]: piece.mine for unit in shards.units.values() for piece in unit.pieces}
        _check_finite(pieces, weights, runtime)
    else:
        shards = Shards(model, partial(model.initial, weights), runtime)
    elements = sum(len(piece.mine) for unit in shards.units.values() for piece in unit.pieces)
    print0(f"sharded weights: {elements:,} on each rank")
    return model


def usual_path(device: torch.device, windows: bool, row_length: int) -> str:
    """Return the fastest attention path that needs no package; row_length: of a row in training, 0: nothing is trained.

    For a CPU by dev/MEASURED.md, "Attention on a CPU".
    """
    if device.type == "cpu":
        # Torch's kernel is the fastest forward. Backward it is slower in short rows, and skips nothing behind a window.
        return "chunks" if row_length and (windows or row_length < LONG_ROW) else "sdpa"
    # Flex skips blocks out of sight; on MPS it has no gradient, and before Ampere too little shared memory.
    has_flex = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    return "flex" if windows and has_flex else "sdpa"


def _empty_model(config: GPTConfig, runtime: Runtime, checkpointing: bool, row_length: int) -> GPT:
    """Return a model without memory, on the meta device, with an attention path that every rank has."""
    usual = usual_path(runtime.device, any(config.windows), row_length)
    if len({*runtime.all_gather(usual)}) > 1:  # GPUs of several generations
        usual = "sdpa"  # every rank has it
    choice = runtime.attention, runtime.device, runtime.dtype, usual
    # First: what rank 0 downloads is there for the ranks beside it.
    path = runtime.broadcast(lambda: find_path(*choice))
    if set(runtime.all_gather(find_path(*choice) if path in FLASH else path)) != {path}:
        path = usual  # different kernels would round differently
    print0(f"attention: {path}")
    model = new_model(config, path, checkpointing)
    model.compute_dtype = runtime.dtype
    return model


# ---- trained models ----


class Trained(NamedTuple):
    """A trained model for inference, with what belongs to it."""

    model: GPT
    tokenizer: Tokenizer
    checkpoint: Checkpoint


def load_chosen(choice: ModelChoice, runtime: Runtime, in_floats: bool = False) -> Trained:
    """Return the model that a command line names, rounded if it asks for that.

    in_floats: rounded weights stay parameters in fp32, as an export reads them; else a CPU keeps the whole numbers.
    """
    found = load_model(MODELS[choice.source], choice.tag, choice.step, runtime, choice.exits)
    if choice.quant:
        from nanochat import int8, quant

        stored = quant.apply(found.model, choice.quant)
        if runtime.device.type == "cpu" and not in_floats:
            int8.keep_int8(found.model, stored)
    return found


def load_model(stage: str, tag: str, step: int, runtime: Runtime, exits: int = 0, sha256: str = "") -> Trained:
    """Return a trained model on the runtime's device, for inference, its tokenizer and its checkpoint.

    exits: of a recursive model, 0 for as many as trained; UserError for a plain model. sha256: see `verified`.
    """
    checkpoint = find_model(stage, tag, step, runtime, sha256=sha256)
    model = build_model(config_of(checkpoint.manifest), runtime, checkpoint)
    if exits:
        model.choose_exits(exits)
    return Trained(model.eval().requires_grad_(False), tokenizer_of(checkpoint), checkpoint)


def find_model(
    stage: str, tag: str, step: int, runtime: Runtime, optimizer: bool = False, sha256: str = ""
) -> Checkpoint:
    """Return a trained model's checkpoint, the same on all ranks; step -1: the newest that is intact.

    optimizer: True if its states are needed too. sha256: see `verified`.
    """
    found = runtime.broadcast(lambda: verified(stage, tag, step, optimizer, sha256))  # one rank reads all files
    print0(f"model: {stage} {tag}, step {found.step:,}")
    return found


def verified(stage: str, tag: str, step: int = -1, optimizer: bool = False, sha256: str = "") -> Checkpoint:
    """Return a trained model's checkpoint after reading its files, those of the optimizer if they are needed.

    step -1: the newest that is intact. sha256: of the weights that a run began with, for the model that it goes back
    to; a UserError says that this one has others. Empty: any.
    """
    folder = stage_dir(stage, tag)
    if step >= 0 and step not in saved_steps(folder):
        raise UserError(f"{folder} has no checkpoint of step {step}, only {saved_steps(folder)}")
    read = partial(load, optimizer=optimizer)
    found = newest(folder, read) if step < 0 else read(folder, step)
    if found is None and optimizer and newest(folder, partial(load, optimizer=False)):
        raise UserError(f"{folder} has no intact optimizer state to start with: give --no-warm-start")
    found = _there(stage, folder, found)
    if sha256 not in ("", weights_hash(found.manifest)):
        raise UserError(
            f"the weights in {found.path} have changed since another model was trained from them: "
            "train that model again"
        )
    return found


def weights_hash(manifest: Record) -> str:
    """Return the SHA-256 of a checkpoint's weights, which says whether two are the same."""
    return manifest["files"][MODEL]["sha256"]


def described(stage: str, tag: str) -> Checkpoint:
    """Return a trained model's newest checkpoint after reading its manifest alone, for a plan."""
    folder = stage_dir(stage, tag)
    return _there(stage, folder, newest(folder, load_manifest))


def base_record(manifest: Record, tag: str) -> tuple[Record, str]:
    """Return the manifest and tag of the base model that a model goes back to; its own if it has no parent."""
    while "num_shards" not in manifest and manifest["parent"]:
        parent = manifest["parent"]
        step, tag = parent["step"], parent["tag"]
        folder = stage_dir(parent["stage"], tag)
        if step not in saved_steps(folder):
            raise UserError(f"the text is that of {step_dir(folder, step)}, which is not there: name one with --data")
        found = load_manifest(folder, step)
        if parent.get("sha256", "") not in ("", weights_hash(found.manifest)):
            raise UserError(f"{found.path} was made again since, perhaps from another text: name one with --data")
        manifest = found.manifest
    return manifest, tag


def _there(stage: str, folder: Path, found: Checkpoint | None) -> Checkpoint:
    """Return what was found; a UserError says which command makes it."""
    if found is None:
        module = next(one.module for one in STAGES if one.name == stage)
        module = registry.module_of(f"the stage {stage}", module)
        raise UserError(f"there is no model in {folder}: python -m {module} makes one")
    return found


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Return the tokenizer that a model was trained with."""
    record = checkpoint.manifest["tokenizer"]
    tokenizer = Tokenizer.load(tokenizer_file(record["tag"]))
    if tokenizer.content_hash != record["hash"]:
        raise UserError(f"{checkpoint.path} was trained with another tokenizer than tok_train now has: train it again")
    return tokenizer


def trained(source: str = "", tag: str = "") -> list[tuple[str, str]]:
    """Return (source, tag) of each trained model, or of those named; UserError if there is none.

    The last stage comes last, and of one stage the run that was trained last.
    """
    found = []
    for name in [source] if source else MODELS:
        folders = (base_dir() / MODELS[name]).glob(tag or "*")
        oldest_first = sorted(folders, key=lambda folder: folder.stat().st_mtime)
        found += [(name, folder.name) for folder in oldest_first if saved_steps(folder)]
    if not found:
        wanted = f"model {source} {tag}".strip()
        raise UserError(f"there is no {wanted} below {base_dir()}: bash speedrun.sh trains one")
    return found


@contextmanager
def as_written(model: GPT) -> Iterator[None]:
    """Run nothing compiled of a model in this context, for batches with ever new shapes."""
    before = model.attention
    # Uncompiled, the other paths hold all scores in memory; FlashAttention has no positions.
    model.attention = "sdpa"
    try:
        with torch.compiler.set_stance("force_eager") if model.compiled else nullcontext():
            yield
    finally:
        model.attention = before
