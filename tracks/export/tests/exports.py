"""Small trained models and tokenizers to export."""

from pathlib import Path

from bundles import memorized
from corpora import SAMPLES
from transformers import AutoModelForCausalLM

from nanochat.gpt import GPT
from nanochat.tokenizer import Tokenizer
from tracks.export import hf

SMALL = {"vocab_size": 701, "max_seq_len": 192, "kv_heads": 1}  # the vocabulary is not a multiple of 64


def tokenizer_of(size: int = SMALL["vocab_size"]):
    return Tokenizer.train(SAMPLES, size)


def trained(name: str, tokenizer: Tokenizer):
    """Return a model after a few steps on the samples, so that no weight has its initial value."""
    return memorized(tokenizer, "".join(SAMPLES), name, steps=4, lr=0.001, **SMALL)


def through_folder(
    model: GPT, folder: Path, architecture: hf.Architecture = hf.OWN, tokenizer: Tokenizer | None = None, **options
):
    """Return a model as `transformers` loads it from its folder, by default with our own code."""
    hf.write_model(hf.Exported("", model, tokenizer, {"stage": "base_train"}), architecture, folder)
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()
