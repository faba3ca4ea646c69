"""A public model, as it came or fine-tuned here, as a folder of its own architecture, loaded again and compared."""

from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from nanochat.checkpoint import learned_from
from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.log import Record, markdown_table, print0, table_of
from nanochat.paths import write_json, write_text
from nanochat.tokenizer import Tokenizer
from tracks.bases.families import FAMILIES, names_of
from tracks.bases.model import PublicGPT
from tracks.bases.tokenizer import PublicTokenizer
from tracks.export.hf import licenses, transformers
from tracks.export.tokenizers import sample_texts

LENGTH = 1024  # tokens of the rows that are compared
BOUND = 1e-4  # largest difference of logits, as a share of their range: angles are rounded in another way


def write_folder(model: GPT, tokenizer: Tokenizer, manifest: Record, folder: Path) -> list[str]:
    """Write config, weights and tokenizer under the names of `transformers`; return sentences on each comparison."""
    assert isinstance(model, PublicGPT)
    assert isinstance(tokenizer, PublicTokenizer)
    public = manifest.get("public")
    if not public:
        raise UserError("the model's manifest does not say where it came from: bring it in again")
    config = model.config
    print0(f"export: as {FAMILIES[config.family].architecture}")
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    weights = {}
    for names in names_of(config):
        weight = state[names.ours]
        if names.ours in ("embed.weight", "head.weight"):
            weight = weight[: config.vocab_size]
        weights[names.theirs] = weight.contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    if "auto_map" in public["config"]:  # of a model that came in when these were not refused
        print0("export: its auto_map, which names code of its own, is left out")
    dropped = ("quantization_config", "dtype", "torch_dtype", "auto_map")
    settings = {name: value for name, value in public["config"].items() if name not in dropped}
    settings |= {"architectures": [FAMILIES[config.family].architecture], "dtype": "float32"}
    # Its context is that of the source, also if it was made shorter here: no scaling that is known depends on it.
    settings |= {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_embeddings}
    write_json(folder / "config.json", settings)
    _write_tokenizer_files(tokenizer, public, folder, settings["max_position_embeddings"])
    ends = public["generation"].get("eos_token_id", public["config"].get("eos_token_id"))
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    # Training here takes every one of its ends for the end of an answer: behind none of them `generate` may go on.
    trained = tokenizer.turn_ends if manifest.get("learned") else (tokenizer.turn_end,)
    ends = list(dict.fromkeys([*trained, *ends]))
    generation = {**public["generation"], "eos_token_id": ends}
    write_json(folder / "generation_config.json", generation)
    checks = [_compare_models(model, folder), _compare_tokenizers(tokenizer, folder)]
    write_text(folder / "README.md", _card(model, manifest, checks))
    return checks


def write_tokenizer(model: GPT, tokenizer: Tokenizer, manifest: Record, folder: Path) -> list[str]:
    """Write the tokenizer alone; return a sentence on its comparison."""
    assert isinstance(tokenizer, PublicTokenizer)
    public = manifest.get("public") or {"config": {}}
    context = public["config"].get("max_position_embeddings", model.config.max_seq_len)
    _write_tokenizer_files(tokenizer, public, folder, context)
    return [_compare_tokenizers(tokenizer, folder)]


def _write_tokenizer_files(tokenizer: PublicTokenizer, public: Record, folder: Path, context: int) -> None:
    """Write the tokenizer.json as it came, what `transformers` wants to know beside it, and the texts of the license.

    public: of the manifest.
    """
    definition = tokenizer.definition
    write_text(folder / "tokenizer.json", definition.tokenizer)
    if definition.template:
        write_text(folder / "chat_template.jinja", definition.template)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # `transformers` 4 knows it too, 5 as a name of TokenizersBackend
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **public.get("sides", {}),
        **definition.variables,
    }
    if definition.listed:
        settings["additional_special_tokens"] = list(definition.listed)
    write_json(folder / "tokenizer_config.json", settings)
    for name, text in public.get("licence_texts", {}).items():
        write_text(folder / name, text)


@torch.inference_mode()
def _compare_models(model: PublicGPT, folder: Path) -> str:
    loaded = transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    length = min(model.config.max_seq_len, LENGTH)
    ids = torch.randint(model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    ours = model(ids)
    difference = (ours - loaded(ids).logits).abs().max().item()
    spread = (ours.max() - ours.min()).item()
    if not difference <= BOUND * spread:  # also refuses NaN
        raise UserError(f"the export computes something else: logits differ by {difference:.2e}, it is not kept")
    found = f"{difference:.2e} of a range of {spread:.1f}, over {ids.numel():,} tokens"
    return f"logits: the largest difference in fp32 is {found}"


def _compare_tokenizers(tokenizer: PublicTokenizer, folder: Path) -> str:
    library = transformers()
    texts = sample_texts()
    expected = [tokenizer.encode(text) for text in texts]

    def differing(loaded: Any) -> int:
        ids = loaded(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return sum(ours != theirs for ours, theirs in zip(expected, ids, strict=True))

    loaded = library.PreTrainedTokenizerFast.from_pretrained(folder)
    first = loaded("x")["input_ids"] == [*tokenizer.prefix, *tokenizer.encode("x")]
    if not first or differing(loaded):
        raise UserError("transformers gives other ids for some texts, the export is not kept")
    sentence = f"tokenizer: transformers gives the same ids for {len(texts):,} texts"
    # It has a class for some architectures, which does not read all of a tokenizer.json.
    others = differing(library.AutoTokenizer.from_pretrained(folder))
    return (
        f"{sentence}, but by AutoTokenizer not for {others:,}: load it by PreTrainedTokenizerFast"
        if others
        else sentence
    )


def _card(model: PublicGPT, manifest: Record, checks: list[str]) -> str:
    """Return the model card: where the weights come from, and what was done here."""
    public = manifest["public"]
    rows = _learned(manifest)
    table = markdown_table(table_of("", "Stage | Data | License", rows))
    files = "".join(f"- {name}: {digest}\n" for name, digest in public["files"].items())
    texts = ", ".join(public.get("licence_texts", {}))
    return CARD.format(
        head=yaml.safe_dump(_head(public), sort_keys=False),
        architecture=public["architecture"],
        origin=public["from"],
        licence=public["licence"] or "not named in the files that came: look at its page",
        texts=f"Its files came along: {texts}.\n" if texts else "",
        stage=manifest["stage"],
        step=manifest["step"],
        learned=LEARNED.format(table=table) if rows else NOTHING,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        files=files,
        checks="".join(f"- {check}\n" for check in checks),
    )


def _learned(manifest: Record) -> list[list[str]]:
    """Return (stage, data, license) for each text and task that the model learned from here."""
    brought_in = learned_from(manifest)[-1]  # the first model of all, of whose data there is no record
    return [row for row in licenses(manifest) if row[:2] != brought_in]


def _head(public: Record) -> Record:
    """Return what a page on the hub shows: license, the model that this one comes from."""
    head: Record = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["nanochat"]}
    hub, _, place = public["from"].partition(":")
    if hub == "hub":
        head["base_model"] = place.partition("@")[0]
    names = public["licence"].split(", ") if public["licence"] else []
    if names and LICENSES.issuperset(names):
        head["license"] = names if len(names) > 1 else names[0]
    elif names:
        head |= {"license": "other", "license_name": ", ".join(names)}
    if public.get("licence_link"):
        head["license_link"] = public["licence_link"]
    return head


# Names that the hub knows; another one stands beside `other`.
LICENSES = frozenset(
    "apache-2.0 mit bsd-2-clause bsd-3-clause gpl-3.0 agpl-3.0 lgpl-3.0 mpl-2.0 unlicense cc0-1.0 cc-by-4.0"
    " cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0 openrail bigscience-openrail-m gemma llama2 llama3 llama3.1 llama3.2"
    " llama3.3".split()
)
CARD = """\
---
{head}---

# {architecture}, from {origin}

{parameters:,} parameters: the model that came from {origin}, at stage {stage}, step {step}.
{learned}
The license of the original weights holds for these too: {licence}.
{texts}
Files that it came in, with their SHA-256:

{files}
Compared with the model in nanochat:

{checks}"""
NOTHING = """\
Here it learned from nothing.
"""
LEARNED = """\
Here it learned from these data:

{table}

"Not known": look at the page of the data, or ask who made it. The license follows from the name alone.
"""
EXPORTERS = {"public": {"hf": write_folder, "tokenizer": write_tokenizer}}
