"""A trained model as files that other programs read: written, loaded again and compared before it counts.

hf: a folder for `transformers`. gguf: a file for llama.cpp. tiktoken: the tokenizer alone.
"""

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanochat.checkpoint import check_free_space, load, steps
from nanochat.data.corpus import open_corpus
from nanochat.export import gguf as gguf_file
from nanochat.export import tokenizers as tokenizer_files
from nanochat.export.forms import FORMS, Form, form_of, settings, weights
from nanochat.export.model_card import model_card, results
from nanochat.export.polyglot import SENTENCES
from nanochat.gpt import GPT
from nanochat.log import print0
from nanochat.paths import publish_folder, stage_dir, write_text
from nanochat.tokenizer import Tokenizer

TOLERANCE = 1e-5  # between logits in fp32; of the largest, where that is above 1: their last bits grow with it
LONGEST = 2048  # tokens of the texts whose logits are compared
GREEDY = 64  # tokens that both go on with
SHARD = 5 << 30  # bytes of weights in a file, at most


@dataclass(frozen=True)
class Exported:
    """What is to be exported. texts: on which tokenizers are compared. base: where the run has left its outcomes."""

    name: str
    tag: str
    model: GPT
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    texts: Sequence[str]
    base: Path


def export(format: str, what: Exported, out: Path) -> None:
    """The folder `out`, which must be new; ValueError where it cannot be made, or was compared and differs."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: remove it, or name another --out")
    check_free_space(out, 4 * sum(p.numel() for p in what.model.parameters()), "the export")
    with new_folder(out) as folder:
        for sentence in FORMATS[format](what, folder):
            print0(sentence)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when all is done; where that fails, nothing is left."""
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        yield part
        publish_folder(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _hf(what: Exported, folder: Path) -> Iterator[str]:
    name, model, special = form_of(what.model.config), what.model, what.tokenizer.special_tokens
    yield f"export: as {name}"
    transformers, form = _transformers(), FORMS[name]
    theirs = _built(transformers, form, settings(model, form, special), dict(weights(model, form)))
    ends = {"eos_token_id": [special[tokenizer_files.END], special[tokenizer_files.BOS]]}
    ends |= {"bos_token_id": special[tokenizer_files.BOS], "pad_token_id": special[tokenizer_files.PAD]}
    theirs.generation_config = transformers.GenerationConfig(**ends)
    theirs.save_pretrained(folder, max_shard_size=SHARD)
    checks = [*_tokenizer(what, folder)]
    checks += compare(what, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    yield from checks
    stage, step = what.manifest["stage"], what.manifest["step"]
    at_end = step == max(
        steps(what.base / stage / what.tag), default=step
    )  # nothing is told of a step in the midst of a run
    came = results(what.base, stage, what.tag, step) if at_end else {}
    write_text(folder / "README.md", model_card(what.name, name, model, what.manifest, came, checks))


def _tokenizer(what: Exported, folder: Path) -> Iterator[str]:
    tokenizer_files.write_hf(what.tokenizer, folder, what.model.config.max_seq_len)
    found = _transformers().AutoTokenizer.from_pretrained(folder).backend_tokenizer
    ids = tokenizer_files.plain_hf(found, what.texts)
    yield tokenizer_files.check(what.tokenizer, what.texts, ids, "transformers")


def _gguf(what: Exported, folder: Path) -> Iterator[str]:
    form_of(what.model.config, [gguf_file.FORM])
    path, form = folder / "model.gguf", FORMS[gguf_file.FORM]
    pattern, others = gguf_file.splitting(what.tokenizer, what.texts)
    about = what.model, what.tokenizer, path, what.name, pattern
    gguf_file.write(*about)
    yield gguf_file.check(*about)
    names = [name for name, _ in weights(what.model, form)]
    yield from compare(what, _built(_transformers(), form, *gguf_file.as_qwen3(path, names)))
    if others:
        yield (
            f"gguf: llama.cpp knows no pattern that splits text into words as this tokenizer does: with {pattern}, "
            f"the nearest, {others:,} of {len(what.texts):,} texts get other ids"
        )


def _tiktoken(what: Exported, folder: Path) -> Iterator[str]:
    tokenizer_files.write_tiktoken(what.tokenizer, folder)
    found = tokenizer_files.load_tiktoken(folder)
    yield tokenizer_files.check(what.tokenizer, what.texts, found.encode_ordinary_batch(what.texts), "tiktoken")


FORMATS = {"hf": _hf, "tokenizer": _tokenizer, "tiktoken": _tiktoken, "gguf": _gguf, "gguf-ready": _gguf}


def _transformers() -> Any:
    """The library, told to be silent; it takes seconds to import."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _built(transformers: Any, form: Form, about: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    config = transformers.AutoConfig.for_model(form.kind, **about)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    model.tie_weights()
    return model.eval()


# ---- is it the same ----


def corpus_lines(manifest: dict[str, Any], most: int = 2000) -> list[str]:
    """The first lines of the text by which the model was validated, if it is on this machine."""
    try:
        while (parent := manifest["parent"]) and "data" not in manifest["config"]:
            manifest = load(stage_dir(parent["stage"], parent["tag"]), parent["step"], hashes=False).manifest
        if not (data := (manifest["config"] or {}).get("data")):
            return []
        batches = open_corpus(data, offline=True).batches("val")
        texts = (text for batch in batches for text in batch.to_pylist())
        return list(itertools.islice((line for text in texts for line in text.splitlines(keepends=True)), most))
    except ValueError as error:
        print0(f"tokenizer: compared without the text that the model was trained on: {error}")
        return []


@torch.inference_mode()
def compare(what: Exported, theirs: Any) -> Iterator[str]:
    """Sentences that the logits, and the tokens that both write, are the same; ValueError where they are not."""
    model, context = what.model, what.model.config.max_seq_len
    rows = _texts(what.tokenizer, min(context, LONGEST))
    worst = 0.0
    for row in rows:
        ours = model(row)
        difference, largest = (part.abs().max().item() for part in (ours - theirs(row).logits, ours))
        if not difference <= TOLERANCE * max(1.0, largest):  # a NaN is not
            raise ValueError(f"the export is another model: its logits differ by {difference:.2e}, it is not kept")
        worst = max(worst, difference)
    yield f"logits: the largest difference in fp32 is {worst:.2e}, over {sum(row.numel() for row in rows):,} tokens"
    prompt = rows[0][:, : max(1, min(16, context - GREEDY))]
    count = min(GREEDY, context - prompt.shape[1])
    ours = prompt
    for _ in range(count):
        ours = torch.cat([ours, model(ours)[:, -1:].argmax(-1)], dim=1)
    theirs.generation_config.eos_token_id = None  # to the last token
    written = theirs.generate(prompt, max_new_tokens=count, do_sample=False)
    if not torch.equal(ours, written):
        raise ValueError(f"the export is another model: it writes {written.tolist()} and not {ours.tolist()}")
    yield f"greedy: the same {count} tokens"


def _texts(tokenizer: Tokenizer, length: int) -> list[Tensor]:
    """Sentences of many languages, and tokens at random; each (1, length)."""
    ids = tokenizer.encode(" ".join(SENTENCES))
    ids = [tokenizer.special_tokens["<|bos|>"], *ids * (length // len(ids) + 1)][:length]
    dice = torch.Generator().manual_seed(0)
    return [torch.tensor([ids]), torch.randint(tokenizer.vocab_size, (1, length), generator=dice)]
