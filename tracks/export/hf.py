"""A trained model as a folder for `transformers`, vLLM and others; loaded again and compared before it counts.

ARCHITECTURES maps our config to architectures of `transformers`, and to our own, which the folder brings along in
modeling_nanochat.py. A setting without equivalent there is never dropped: the next architecture is tried.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanochat import registry
from nanochat.checkpoint import learned_from, manifest_hash
from nanochat.errors import UserError
from nanochat.gpt import GPT, NORM_EPS, Block, GPTConfig, norm
from nanochat.log import Record, markdown_table, print0, table_of
from nanochat.models import IDLE, PLAIN, config_fields
from nanochat.paths import new_folder, read_json, write_json, write_text
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer
from tracks.export import tokenizers as tokenizer_files
from tracks.export.tokenizers import BOS, END, PAD

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Exported:
    """A model to export, in fp32 on the CPU."""

    name: str  # title of the model card
    model: GPT
    tokenizer: Tokenizer
    manifest: Record  # of the checkpoint
    dtype: str = "fp32"  # of the weights in the files of `transformers`; or bf16


def export(write: Callable[[Exported, Path], Iterable[str]], exported: Exported, out: Path) -> None:
    """Write a new folder; if a comparison fails, nothing is left.

    write: from the model and a folder, which it fills, to sentences about the comparisons, which are in fp32.
    """
    if out.exists():
        raise UserError(f"{out} exists already: remove it, or name another --out")
    with new_folder(out) as part:
        for sentence in write(exported, part):
            print0(sentence)
        if exported.dtype == "bf16":
            print0(round_weights(exported.model, part))


def has_own_writers(exported: Exported) -> bool:
    """Return True if a track writes models of this kind."""
    return exported.model.config.kind in registry.EXPORTERS.modules


def write_as_its_own(exported: Exported, folder: Path, form: str) -> list[str]:
    """Write a model as the track of its kind does. form: a word of --format."""
    kind = exported.model.config.kind
    writers = registry.load(registry.EXPORTERS, kind)
    if form not in writers:
        raise UserError(f"--format={form}: models of the kind {kind} go out as {', '.join(writers)}")
    return writers[form](exported.model, exported.tokenizer, exported.manifest, folder)


# ---- architectures ----

# Sizes that every architecture has under another name, and details of new weights, of smear and of supervision: without
# these tricks they have no effect.
_SIZES = (
    "vocab_size",
    "depth",
    "width",
    "heads",
    "kv_heads",
    "max_seq_len",
    "mlp_ratio",
    "rope_base",
    "tie_embeddings",
    "orthogonal",
    "bos_id",
    "loops",
    "passes",
    "detached",
)
# Name of a size there -> ours.
_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_seq_len",
}


@dataclass(frozen=True)
class Architecture:
    """An architecture of `transformers`."""

    name: str
    model_type: str
    preset: str  # --model of base_train that fits, and says which value a field of our config needs
    rotates_backwards: bool = False  # rotates queries and keys by minus the position
    has_norm_weights: bool = False
    mlp: Mapping[str, str] = field(default_factory=dict)  # our layer up, down or gate -> the name there
    supported: Set[str] = frozenset()  # config fields that may have any value, beside the sizes

    @property
    def linears(self) -> dict[str, str]:
        """The linear layers in a block: our name -> the name there."""
        return {f"attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"} | {
            f"mlp.{ours}": f"mlp.{theirs}" for ours, theirs in self.mlp.items()
        }


NANOCHAT = Architecture(
    name="NanoChatForCausalLM",
    model_type="nanochat",
    preset="october-2025",
    rotates_backwards=True,
    mlp={"up": "fc1", "down": "fc2"},
    supported={"softcap"},
)
QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    preset="portable",
    has_norm_weights=True,
    mlp={"up": "up_proj", "down": "down_proj", "gate": "gate_proj"},
    supported={"qk_scale", "residual_lambdas", "window_pattern"},  # the first two go into weights
)
# Our weights under our names, with the code that reads them.
OWN = Architecture(
    name="NanochatForCausalLM",
    model_type="nanochat_gpt",
    preset="reference",
    # All that modeling_nanochat.py knows: no tricks of experiments.
    supported={
        "mlp",
        "window_pattern",
        "qk_scale",
        "softcap",
        "residual_lambdas",
        "x0_lambdas",
        "value_embeds",
        "smear",
        "induction",
        "backout",
        "supervision",
    },
)
ARCHITECTURES = [NANOCHAT, QWEN3, OWN]  # the first that can represent a model is used
CODE = "modeling_nanochat"
VERSION = 1  # of that file and its config.json
# Written out for the code.
DERIVED = ("head_dim", "kv_width", "padded_vocab", "windows", "value_layers", "attention_scale")


def unsupported(config: GPTConfig, architecture: Architecture) -> list[str]:
    """Return the settings that the architecture cannot represent, as name=value."""
    supported = {*_SIZES, *architecture.supported}
    if not any(config.windows):  # all are as long as the context
        supported.add("window_pattern")
    needed = {**IDLE, **PLAIN, **config_fields(architecture.preset)}
    others = {name: value for name, value in asdict(config).items() if name not in supported}
    # A field in no table, such as a new one, is refused with any value.
    return [f"{name}={value}" for name, value in others.items() if needed.get(name, ...) != value]


def architecture_of(config: GPTConfig, architectures: Sequence[Architecture] = ARCHITECTURES) -> Architecture:
    """Return the first architecture that can represent the model; UserError lists the obstacles for the last one."""
    reason = ""
    for architecture in architectures:
        settings = unsupported(config, architecture)
        if not settings:
            return architecture
        obstacles = f"{architecture.name} does not support {', '.join(settings)}"
        reason = f"{obstacles}. It supports those of --model={architecture.preset}"
    raise UserError(f"this model cannot be exported: {reason}")


def _mlp_units(model: GPT) -> int:
    """Return mlp_ratio * width, rounded."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    return block.mlp.up.out_features


def hf_settings(model: GPT, architecture: Architecture, special_tokens: dict[str, int]) -> Record:
    """Return the fields of the architecture's config."""
    config = model.config
    settings = {theirs: getattr(config, ours) for theirs, ours in _NAMES.items()} | {
        "intermediate_size": _mlp_units(model),
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        # Normed rows are for the embedding only: then the head has a table of its own.
        "tie_word_embeddings": config.tie_embeddings and not architecture.has_norm_weights,
        "bos_token_id": special_tokens[BOS],
        "eos_token_id": special_tokens[END],
        "pad_token_id": None,  # `transformers` would not train the embedding of an id given here
    }
    if "softcap" in architecture.supported:
        settings["final_logit_softcapping"] = config.softcap or None
    if any(config.windows):
        settings |= {
            "use_sliding_window": True,
            "sliding_window": max(config.windows),
            "layer_types": ["sliding_attention" if window else "full_attention" for window in config.windows],
        }
    return settings


def hf_weights(model: GPT, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of the architecture, without the rows that pad our vocabulary."""
    config = model.config
    rows = model.embed.weight.detach()[: config.vocab_size]  # (vocab_size, width)
    if architecture.has_norm_weights:  # and no norm behind the embedding: it goes into the rows
        rows = norm(rows)
    yield "model.embed_tokens.weight", rows
    if architecture.has_norm_weights or not config.tie_embeddings:
        yield "lm_head.weight", model.head_weight.detach()[: config.vocab_size]
    # Our norms have no weights: ones, and the scale for queries and keys.
    ones = torch.ones(config.width)
    scale = torch.full((config.head_dim,), config.qk_scale)
    norms = {
        "input_layernorm": ones,
        "post_attention_layernorm": ones,
        "self_attn.q_norm": scale,
        "self_attn.k_norm": scale,
    }
    # A block multiplies its input by a factor above 0: here its outputs are divided instead. Later inputs change only
    # in size, and the norm before each layer removes that.
    factors = torch.ones(config.depth) if model.residual_lambdas is None else model.residual_lambdas
    scales = factors.detach().cumprod(0)
    for number, block in enumerate(model.blocks):
        prefix = f"model.layers.{number}."
        for ours, theirs in architecture.linears.items():
            weight = block.get_parameter(f"{ours}.weight").detach()
            if architecture.rotates_backwards and ours in ("attn.q", "attn.k"):
                weight = swap_halves(weight, config.head_dim)
            if ours in ("attn.o", "mlp.down"):
                weight = weight / scales[number]
            yield f"{prefix}{theirs}.weight", weight
        if architecture.has_norm_weights:
            for name, weight in norms.items():
                yield f"{prefix}{name}.weight", weight.clone()  # safetensors refuses tensors that share memory
    if architecture.has_norm_weights:
        yield "model.norm.weight", ones


def swap_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Exchange the halves of each head's rows for queries or keys, so that they rotate in the other direction."""
    # (heads * head_dim, width) -> (heads, 2, head_dim / 2, width) and back
    return weight.unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)


# ---- the folder ----


def write_folder(exported: Exported, folder: Path) -> list[str]:
    """Write config, weights, tokenizer and model card; return sentences on each comparison."""
    model = exported.model
    if has_own_writers(exported):
        return write_as_its_own(exported, folder, "hf")
    architecture = architecture_of(model.config)
    print0(f"export: as {architecture.name}")
    write_model(exported, architecture, folder)
    # Generation stops at the end of an answer, and at the start of another document.
    special = exported.tokenizer.special_tokens
    generation = {
        "bos_token_id": special[BOS],
        "eos_token_id": [special[END], special[BOS]],
        "pad_token_id": special[PAD],
    }
    write_json(folder / "generation_config.json", generation)
    checks = write_tokenizer(exported, folder)
    # The files are compared, not the objects that wrote them.
    automatic = transformers().AutoModelForCausalLM
    loaded = automatic.from_pretrained(folder, dtype=torch.float32, trust_remote_code=architecture is OWN)
    checks.append(compare_models(exported, loaded))
    # The model card that the hub shows.
    card = CARD.format(
        exported=exported,
        architecture=architecture,
        parameters=sum(p.numel() for p in model.parameters()),
        config=model.config,
        prompt=BASE_PROMPT if exported.manifest["stage"] == MODELS["base"] else CHAT_PROMPT,
        data=markdown_table(table_of("", "Stage | Data | License", licenses(exported.manifest))),
        checks="".join(f"- {check}\n" for check in checks),
    )
    write_text(folder / "README.md", card)
    return checks


def write_model(exported: Exported, architecture: Architecture, folder: Path) -> None:
    """Write config and weights, and for our own architecture the code that reads both."""
    if architecture is OWN:
        settings = own_settings(exported)
        weights = exported.model.state_dict()
        shutil.copy(Path(__file__).with_name(f"{CODE}.py"), folder)
    else:
        settings = hf_settings(exported.model, architecture, exported.tokenizer.special_tokens)
        weights = dict(hf_weights(exported.model, architecture))
    settings |= {"model_type": architecture.model_type, "architectures": [architecture.name]}
    write_json(folder / "config.json", settings)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def own_settings(exported: Exported) -> Record:
    """Return the fields of our own architecture's config, with the checkpoint's manifest."""
    model = exported.model
    manifest = exported.manifest
    derived = {name: getattr(model.config, name) for name in DERIVED}
    return (
        {**IDLE, **asdict(model.config)}
        | derived
        | {
            "mlp_units": _mlp_units(model),
            "supervision": getattr(model, "steps", 0),  # --exits may ask for more than were trained
            "version": VERSION,
            "manifest": manifest | {"files": {}, "optimizer": {}, "sha256": manifest_hash(manifest)},
            "auto_map": {"AutoConfig": f"{CODE}.NanochatConfig", "AutoModelForCausalLM": f"{CODE}.{OWN.name}"},
        }
    )


def write_tokenizer(exported: Exported, folder: Path) -> list[str]:
    """Write the tokenizer alone, which fits any model; lm-evaluation-harness reads it beside our server."""
    if has_own_writers(exported):
        return write_as_its_own(exported, folder, "tokenizer")
    tokenizer_files.write_hf(exported.tokenizer, folder, exported.model.config.max_seq_len)
    # backend_tokenizer: the fast one in Rust, which encodes a batch in threads.
    loaded = transformers().AutoTokenizer.from_pretrained(folder, trust_remote_code=True).backend_tokenizer
    loaded.encode_special_tokens = True  # the library's name for "as plain text"
    texts = tokenizer_files.sample_texts()
    encodings = loaded.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        if exported.tokenizer.encode(text) != encoding.ids:
            raise UserError(f"transformers gives other ids for {text!r}")
    return [f"tokenizer: transformers gives the same ids for {len(texts)} texts"]


def transformers() -> ModuleType:
    """Import the library, which takes seconds, without its messages."""
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


@torch.inference_mode()
def compare_models(exported: Exported, loaded: "PreTrainedModel") -> str:
    """Return a sentence on equal logits; UserError if they differ."""
    tokenizer = exported.tokenizer
    length = min(exported.model.config.max_seq_len, 2048)
    # A row of text in many languages and a row of random ids, each (1, length).
    text = [tokenizer.special_tokens[BOS], *tokenizer.encode("".join(tokenizer_files.sample_texts()))][:length]
    generator = torch.Generator().manual_seed(0)
    rows = [torch.tensor([text]), torch.randint(tokenizer.vocab_size, (1, length), generator=generator)]
    worst = 0.0
    for row in rows:
        logits = exported.model(row)
        difference = (logits - loaded(row).logits).abs().max().item()
        # The last bits of fp32 grow with the logits: relative where these are above 1.
        allowed = 1e-5 * max(1.0, logits.abs().max().item())
        if not difference <= allowed:  # also refuses NaN
            raise UserError(f"the export computes something else: logits differ by {difference:.2e}, it is not kept")
        worst = max(worst, difference)
    return f"logits: the largest difference in fp32 is {worst:.2e}, over {2 * length:,} tokens"


@torch.inference_mode()
def round_weights(model: GPT, folder: Path) -> str:
    """Round a compared folder's weights to bf16; return a sentence on what that changes, the card's last one.

    UserError if `transformers` does not read the rounded weights, or computes no numbers with them.
    """
    path, part = folder / "model.safetensors", folder / "part.safetensors"
    weights = {name: weight.bfloat16() for name, weight in load_file(path).items()}
    save_file(weights, part, {"format": "pt"})
    part.replace(path)
    write_json(folder / "config.json", read_json(folder / "config.json") | {"dtype": "bfloat16"})
    has_code = (folder / f"{CODE}.py").exists()
    automatic = transformers().AutoModelForCausalLM
    loaded = automatic.from_pretrained(folder, dtype=torch.float32, trust_remote_code=has_code)
    read = loaded.state_dict()
    others = [name for name, weight in weights.items() if name not in read or not read[name].equal(weight.float())]
    if others:
        raise UserError(f"transformers reads other weights than were rounded, {others[0]} for one: it is not kept")
    shape = 1, min(model.config.max_seq_len, 2048)
    ids = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    logits = model(ids)
    difference = (loaded(ids).logits - logits).abs()
    if not difference.isfinite().all():
        raise UserError("with weights in bf16 the model computes values that are not finite, it is not kept")
    found = f"by {difference.mean():.1e} on average, at most by {difference.max():.1e}, of {shape[1]:,} random tokens"
    spread = logits.max() - logits.min()
    sentence = f"weights: then rounded to bf16, which changes logits (their range is {spread:.1f}) {found}"
    card = folder / "README.md"
    write_text(card, f"{card.read_text(encoding='utf-8').rstrip()}\n- {sentence}\n")
    return sentence


# ---- the model card ----

# Patterns for names of texts and tasks -> the licenses of these data as far as we know them.
LICENSES = {
    r"world(-\d+)?|World-.*|Sudoku-.*": "MIT",
    "climbmix": "CC BY-NC 4.0",
    "fineweb-edu|fineweb2-ko": "ODC-By 1.0, with the terms of Common Crawl",
    "SmolTalk|SmolTalk-Large": "Apache 2.0 for the new parts, others have their own",
    "AQUA|AQUA-Letter|AQUA-Rationale": "Apache 2.0",
    "GSM8K|HumanEval": "MIT",
    "MMLU": "MIT, its training split is made of other data sets with their own",
    "ARC-Easy|ARC-Challenge": "CC BY-SA 4.0",
    "SimpleSpelling|SpellingBee": "that of the tokenizer's text",
}


def licenses(manifest: Record) -> list[list[str]]:
    """Return (stage, data, license) for each text and task that a model and those before it learned from."""
    rows = []
    for stage, name in dict.fromkeys(map(tuple, learned_from(manifest))):  # merged models share some
        # An augmentation may follow: AQUA~styles:2.
        known = [license for pattern, license in LICENSES.items() if re.match(f"({pattern})(~|$)", name)]
        rows.append([stage, name, *(known or ["not known"])])
    return rows


CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- nanochat
- {architecture.model_type}
---

# {exported.name}

A language model trained with nanochat: {architecture.name} with {parameters:,} parameters, {config.depth} layers, width
{config.width}, {config.heads} heads ({config.kv_heads} for keys and values), context {config.max_seq_len:,}, vocabulary
{config.vocab_size:,}. Weights are in {exported.dtype}.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or the name of its repository
trusted = {{"trust_remote_code": True}}  # modeling_nanochat.py, if the folder has it: one file to read first
tokenizer = AutoTokenizer.from_pretrained(folder, **trusted)
model = AutoModelForCausalLM.from_pretrained(folder, **trusted)
{prompt}
print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))
```

## Caveats

- Names of special tokens in a text are read as tokens: `<|bos|>` in a message starts a document. To prevent that,
  encode messages with `split_special_tokens=True`; the text of the chat template needs the default.
- The model may write an expression between `<|python_start|>` and `<|python_end|>`. In nanochat a calculator inserts
  the value after it, between `<|output_start|>` and `<|output_end|>`. Elsewhere the caller has to do that.
- If config.json has `layer_types` with `sliding_attention`, some layers see a part of the context only. A program that
  does not know this computes something else.

## Origin

Stage {exported.manifest[stage]}, step {exported.manifest[step]}, tokenizer {exported.manifest[tokenizer][hash]},
versions {exported.manifest[versions]}.

## License

The code is nanochat's, under the MIT license. The license of the weights is for their owner to choose, and depends on
that of the data:

{data}

"Not known": look at the page of the data, or ask who made it. The license follows from the name alone: look too if a
folder had the name of a data set, or if the model was trained further in another program.

## Compared with the original

{checks}"""
CHAT_PROMPT = """\
chat = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
BASE_PROMPT = 'ids = tokenizer("<|bos|>The capital of France is", return_tensors="pt")  # a base model continues text'
