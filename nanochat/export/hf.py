"""A trained model as a folder for `transformers`, vLLM and others; loaded again and compared before it counts.

ARCHITECTURES maps our config to architectures of `transformers`. A setting without equivalent there is never dropped:
the export is refused, and the message names the setting.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanochat.checkpoint import check_free_space, steps
from nanochat.export import tokenizers as tokenizer_files
from nanochat.gpt import GPT, GPTConfig
from nanochat.layers import norm
from nanochat.log import print0
from nanochat.outcome import Outcome
from nanochat.paths import publish_folder, stage_dir, write_text
from nanochat.report.card import show
from nanochat.stages import MODELS, STAGES
from nanochat.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-5  # largest difference between logits in fp32; relative where logits are above 1
COMPARED_TOKENS = 2048  # most tokens in a row whose logits are compared
GREEDY_TOKENS = 64  # tokens that both models generate
SHARD_BYTES = 5 << 30  # most bytes of weights in a file


@dataclass(frozen=True)
class Exported:
    """A model to export. texts: tokenizers are compared on them; base: folder with the outcomes of the run."""

    name: str
    tag: str
    model: GPT
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    texts: list[str]
    base: Path


Writer = Callable[[Exported, Path], list[str]]


def export(write: Writer, exported: Exported, out: Path) -> None:
    """Write a new folder by `write`, which returns what was compared; if it fails, nothing is left."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists already: remove it, or name another --out")
    parameters = sum(p.numel() for p in exported.model.parameters())
    check_free_space(out, 4 * parameters, "the export")
    part = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        for sentence in write(exported, part):
            print0(sentence)
        publish_folder(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


# ---- architectures ----

# Sizes that every architecture has under another name.
_SIZES = "vocab_size depth width heads kv_heads max_seq_len mlp_ratio rope_base norm_eps tie_embeddings".split()
# Tricks that no architecture has: the only value that can be exported.
_OFF = {
    "qk_norm": True,
    "qk_gain": False,
    "rope_dims": 0,
    "window_pattern": "L",
    "bos_id": -1,
    "backout": False,
    "residual_lambdas": False,
    "x0_lambdas": False,
    "value_embeds": False,
    "smear": False,
    "induction": False,
}
_ATTENTION = {f"attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"}


@dataclass(frozen=True)
class Architecture:
    """An architecture of `transformers`."""

    model_type: str
    preset: str  # --model of base_train that fits
    linears: dict[str, str]  # in a block: our name -> the name there
    required: dict[str, Any]  # config fields that need this value
    supported: set[str] = field(default_factory=set)  # config fields that may have any value, beside the sizes
    rotates_backwards: bool = False  # rotates queries and keys by minus the position
    has_norm_weights: bool = False


ARCHITECTURES = {
    "NanoChatForCausalLM": Architecture(
        model_type="nanochat",
        preset="october-2025",
        linears=_ATTENTION | {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
        required=_OFF | {"mlp": "relu2", "embed_norm": True, "qk_scale": 1.0},
        supported={"softcap"},
        rotates_backwards=True,
    ),
    "Qwen3ForCausalLM": Architecture(
        model_type="qwen3",
        preset="portable",
        linears=_ATTENTION | {f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        required=_OFF | {"mlp": "swiglu", "softcap": 0.0},
        supported={"embed_norm", "qk_scale"},  # both go into weights
        has_norm_weights=True,
    ),
}


def unsupported(config: GPTConfig, architecture: Architecture) -> list[str]:
    """Return the settings that the architecture cannot represent, as name=value."""
    values = asdict(config)
    # Settings without effect need no equivalent.
    values["rope_dims"] = config.rope_dims % config.head_dim
    if not any(config.windows):
        values["window_pattern"] = "L"
    if not config.smear:
        values["bos_id"] = -1
    found = []
    for name, value in values.items():
        is_supported = name in _SIZES or name in architecture.supported
        # A field that is in no table is unsupported, whatever its value.
        if not is_supported and architecture.required.get(name, ...) != value:
            found.append(f"{name}={value}")
    return found


def architecture_of(config: GPTConfig, names: Iterable[str] = tuple(ARCHITECTURES)) -> str:
    """Return the first of these architectures that represents the model; ValueError lists the obstacles."""
    reasons = []
    presets = []
    for name in names:
        settings = unsupported(config, ARCHITECTURES[name])
        if not settings:
            return name
        reasons.append(f"{name} does not support {', '.join(settings)}")
        presets.append(f"--model={ARCHITECTURES[name].preset}")
    raise ValueError(
        f"this model cannot be exported: {'; '.join(reasons)}. Train with scripts.base_train {' or '.join(presets)}"
    )


def hf_settings(model: GPT, architecture: Architecture, special_tokens: dict[str, int]) -> dict[str, Any]:
    """Return the fields of the architecture's config."""
    config = model.config
    settings = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": model.blocks[0].mlp.up.weight.shape[0],
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": is_tied(config, architecture),
        "bos_token_id": special_tokens[tokenizer_files.BOS],
        "eos_token_id": special_tokens[tokenizer_files.END],
        "pad_token_id": None,  # `transformers` would not train the embedding of an id given here
    }
    if "softcap" in architecture.supported:
        settings["final_logit_softcapping"] = config.softcap or None
    return settings


def _folds_embed_norm(config: GPTConfig, architecture: Architecture) -> bool:
    """Return True if the norm behind the embedding goes into the rows of the exported table."""
    return config.embed_norm and "embed_norm" in architecture.supported


def is_tied(config: GPTConfig, architecture: Architecture) -> bool:
    """Return True if head and embedding share a table there, too; normed rows are for the embedding only."""
    return config.tie_embeddings and not _folds_embed_norm(config, architecture)


def hf_weights(model: GPT, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of the architecture, without the rows that pad our vocabulary."""
    config = model.config
    rows = model.embed.weight.detach()[: config.vocab_size]
    if _folds_embed_norm(config, architecture):
        rows = norm(rows, config.norm_eps)
    yield "model.embed_tokens.weight", rows
    yield "lm_head.weight", model.head_weight.detach()[: config.vocab_size]
    # Our norms have no weights: ones, and the scale for queries and keys.
    norms = {
        "input_layernorm": (config.width, 1.0),
        "post_attention_layernorm": (config.width, 1.0),
        "self_attn.q_norm": (config.head_dim, config.qk_scale),
        "self_attn.k_norm": (config.head_dim, config.qk_scale),
    }
    for number, block in enumerate(model.blocks):
        prefix = f"model.layers.{number}."
        for ours, theirs in architecture.linears.items():
            weight = block.get_submodule(ours).weight.detach()
            if architecture.rotates_backwards and ours in ("attn.q", "attn.k"):
                weight = swap_halves(weight, config.head_dim)
            yield f"{prefix}{theirs}.weight", weight
        if architecture.has_norm_weights:
            for name, (size, value) in norms.items():
                yield f"{prefix}{name}.weight", rows.new_full((size,), value)
    if architecture.has_norm_weights:
        yield "model.norm.weight", rows.new_ones(config.width)


def swap_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Exchange the halves of each head's rows of queries or keys: rotation by +position becomes -position."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)


# ---- the folder ----


def write_model(exported: Exported, folder: Path) -> list[str]:
    """Write config, weights, tokenizer and model card; return sentences on each comparison."""
    model = exported.model
    name = architecture_of(model.config)
    print0(f"export: as {name}")
    architecture = ARCHITECTURES[name]
    special = exported.tokenizer.special_tokens
    built = build(architecture, hf_settings(model, architecture, special), dict(hf_weights(model, architecture)))
    built.generation_config = transformers().GenerationConfig(
        bos_token_id=special[tokenizer_files.BOS],
        eos_token_id=[special[tokenizer_files.END], special[tokenizer_files.BOS]],
        pad_token_id=special[tokenizer_files.PAD],
    )
    built.save_pretrained(folder, max_shard_size=SHARD_BYTES)
    checks = write_tokenizer(exported, folder)
    loaded = transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    checks += compare(exported, loaded)
    write_text(folder / "README.md", model_card(exported, name, checks))
    return checks


def write_tokenizer(exported: Exported, folder: Path) -> list[str]:
    """Write the tokenizer alone, which fits any model; lm-evaluation-harness reads it beside our server."""
    tokenizer_files.write_hf(exported.tokenizer, folder, exported.model.config.max_seq_len)
    loaded = transformers().AutoTokenizer.from_pretrained(folder).backend_tokenizer
    ids = tokenizer_files.encode_plain(loaded, exported.texts)
    return [tokenizer_files.compare_ids(exported.tokenizer, exported.texts, ids, "transformers")]


def transformers() -> ModuleType:
    """Import the library, which takes seconds, without its messages."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def build(architecture: Architecture, settings: dict[str, Any], weights: dict[str, Tensor]) -> "PreTrainedModel":
    """Return a model of `transformers` in fp32."""
    config = transformers().AutoConfig.for_model(architecture.model_type, **settings)
    model = transformers().AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({name: weight.contiguous() for name, weight in weights.items()}, assign=True)
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def compare(exported: Exported, loaded: "PreTrainedModel") -> list[str]:
    """Return sentences on equal logits and equal greedy tokens; ValueError if they differ."""
    model = exported.model
    context = model.config.max_seq_len
    rows = _rows_of_tokens(exported, min(context, COMPARED_TOKENS))
    worst = 0.0
    for row in rows:
        logits = model(row)
        difference = (logits - loaded(row).logits).abs().max().item()
        # The last bits of fp32 grow with the logits.
        allowed = TOLERANCE * max(1.0, logits.abs().max().item())
        if not difference <= allowed:  # also refuses NaN
            raise ValueError(f"the export computes something else: logits differ by {difference:.2e}, it is not kept")
        worst = max(worst, difference)
    prompt = rows[0][:, : max(1, min(16, context - GREEDY_TOKENS))]
    count = min(GREEDY_TOKENS, context - prompt.shape[1])
    expected = prompt
    for _ in range(count):
        token = model(expected)[:, -1:].argmax(-1)
        expected = torch.cat([expected, token], dim=1)
    loaded.generation_config.eos_token_id = None  # generate all tokens
    generated = loaded.generate(prompt, max_new_tokens=count, do_sample=False)
    if not torch.equal(expected, generated):
        raise ValueError(f"the export generates {generated.tolist()} and not {expected.tolist()}, it is not kept")
    tokens = sum(row.numel() for row in rows)
    return [
        f"logits: the largest difference in fp32 is {worst:.2e}, over {tokens:,} tokens",
        f"greedy: the same {count} tokens",
    ]


def _rows_of_tokens(exported: Exported, length: int) -> list[Tensor]:
    """Return a row of text in many languages and a row of random ids, each (1, length)."""
    tokenizer = exported.tokenizer
    ids = tokenizer.encode("".join(exported.texts[:200]))
    repeats = length // len(ids) + 1
    text = [tokenizer.special_tokens[tokenizer_files.BOS], *ids * repeats][:length]
    generator = torch.Generator().manual_seed(0)
    return [torch.tensor([text]), torch.randint(tokenizer.vocab_size, (1, length), generator=generator)]


# ---- the model card ----

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- nanochat
- {model_type}
---

# {name}

A language model trained with nanochat.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or the name of its repository
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
{prompt}
print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))
```

## Caveats

- Names of special tokens in a text are read as tokens: `<|bos|>` in a message starts a document. To prevent that,
  encode messages with `split_special_tokens=True`; the text of the chat template needs the default.
- The model may write an expression between `<|python_start|>` and `<|python_end|>`. In nanochat a calculator inserts
  the value after it, between `<|output_start|>` and `<|output_end|>`. Elsewhere the caller has to do that.
"""
CHAT_PROMPT = """\
chat = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
BASE_PROMPT = 'ids = tokenizer("<|bos|>The capital of France is", return_tensors="pt")  # a base model continues text'


def model_card(exported: Exported, name: str, checks: list[str]) -> str:
    """Return the README.md that the hub shows: use, shape, origin, metrics and comparisons."""
    config = exported.model.config
    manifest = exported.manifest
    shape = {
        "Architecture": name,
        "Parameters": sum(p.numel() for p in exported.model.parameters()),
        "Layers": config.depth,
        "Width": config.width,
        "Heads": config.heads,
        "Heads for keys and values": config.kv_heads,
        "Context": config.max_seq_len,
        "Vocabulary": config.vocab_size,
        "Weights": "fp32",
    }
    origin = {
        "Stage": manifest["stage"],
        "Step": manifest["step"],
        "Tokenizer": manifest["tokenizer"]["hash"],
        **manifest["versions"],
    }
    sections = {"Shape": shape, "Origin": origin, **metrics_of_run(exported)}
    card = CARD.format(
        model_type=ARCHITECTURES[name].model_type,
        name=exported.name,
        prompt=BASE_PROMPT if manifest["stage"] == MODELS["base"] else CHAT_PROMPT,
    )
    for title, values in sections.items():
        lines = [f"- {label}: {show(value)}\n" for label, value in values.items()]
        card += f"\n## {title}\n\n" + "".join(lines)
    return card + "\n## Compared with the original\n\n" + "".join(f"- {check}\n" for check in checks)


def metrics_of_run(exported: Exported) -> dict[str, dict[str, Any]]:
    """Return metrics by title: the stage that trained the model, and its evaluations at the same step."""
    stage = exported.manifest["stage"]
    step = exported.manifest["step"]
    if step != max(steps(stage_dir(stage, exported.tag, exported.base)), default=step):
        return {}  # outcomes describe the last step of a run
    found = {}
    for one in STAGES:
        is_evaluation = one.parent == stage and one.name not in MODELS.values()
        path = stage_dir(one.name, exported.tag, exported.base) / "outcome.json"
        if not (one.name == stage or is_evaluation) or not path.exists():
            continue
        metrics = Outcome.load(path).metrics
        if metrics.get("Step", step) == step:
            found[one.section] = metrics
    return found
