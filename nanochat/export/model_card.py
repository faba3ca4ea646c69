"""The card of an exported model, in the Markdown that the Hugging Face Hub shows: its README.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanochat.export.forms import FORMS
from nanochat.gpt import GPT
from nanochat.outcome import Outcome
from nanochat.report.card import read_outcomes, show
from nanochat.stages import MODELS, STAGES

USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # that of this card, or its repository's name
tokenizer, model = (auto.from_pretrained(folder) for auto in (AutoTokenizer, AutoModelForCausalLM))
{ids}
print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))
```"""
ASKED = """\
chat = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
BEGUN = (
    'ids = tokenizer("<|bos|>The capital of France is", return_tensors="pt")  # it goes on, and has learned no chats'
)
MIND = """\
- Text is not safe from the names of special tokens here: `<|bos|>` in a message is read as the token, unless the
  tokenizer is called with `split_special_tokens=True`, which the text of the chat template must not be.
- The model may write an expression between `<|python_start|>` and `<|python_end|>`. nanochat's engine puts the value
  behind it, between `<|output_start|>` and `<|output_end|>`; whoever runs the model elsewhere has to do that."""


def model_card(
    name: str, form: str, model: GPT, manifest: dict[str, Any], came: dict[str, dict], checks: Sequence[str]
) -> str:
    """came: what `results` gives. checks: sentences on how the export was compared with the model."""
    config = model.config
    shape = {"Architecture": form, "Parameters": sum(p.numel() for p in model.parameters()), "Layers": config.depth}
    shape |= {"Width": config.width, "Heads": config.heads, "Heads of keys and values": config.kv_heads}
    shape |= {"Context": config.max_seq_len, "Vocabulary": config.vocab_size, "Weights": "fp32"}
    origin = {"Stage": manifest["stage"], "Step": manifest["step"], "Tokenizer": manifest["tokenizer"]["hash"]}
    origin |= manifest["versions"]
    ids = BEGUN if manifest["stage"] == MODELS["base"] else ASKED
    tags = f"- nanochat\n- {FORMS[form].kind}"
    parts = [f"---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n{tags}\n---"]
    parts += [f"# {name}", "A language model trained with nanochat.", "## Use", USE.format(ids=ids)]
    parts += ["## Mind", MIND, "## Shape", _listing(shape), "## Origin", _listing(origin)]
    parts += [f"## {title}\n\n{_listing(metrics)}" for title, metrics in came.items()]
    parts += ["## Compared with the model it was made from", "\n".join(f"- {check}" for check in checks)]
    return "\n\n".join(parts) + "\n"


def results(base: Path, stage: str, tag: str, step: int) -> dict[str, dict]:
    """The metrics of the model's training, which ended with that step, and of its evaluations, by section.

    They are what the run has left; what tells that it is of another step is none of it.
    """
    others = set(MODELS.values()) - {stage}  # that were trained from it
    named = {one.name for one in STAGES if stage in (one.name, one.parent)} - others
    found = read_outcomes(base, tag=tag)
    of_it = [(title, one.metrics) for _, title, one in found if isinstance(one, Outcome) and one.stage in named]
    return {title: metrics for title, metrics in of_it if metrics.get("Step", step) == step}


def _listing(facts: dict[str, Any]) -> str:
    return "\n".join(f"- {label}: {show(value)}" for label, value in facts.items())
