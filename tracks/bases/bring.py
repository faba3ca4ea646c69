"""Bring a public model in, to evaluate it, chat with it, fine-tune it and export it again.

python -m tracks.bases.bring --from=SmolLM2-135M-Instruct --tag=smol
"""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.outcome import Outcome
from nanochat.settings import TagSettings
from nanochat.stages import MODELS, Source
from nanochat.statistics import NOT_KNOWN

if TYPE_CHECKING:
    from tracks.bases.sources import FoundModel
    from tracks.bases.tokenizer import Definition

# Fine-tuning inherits these from its parent. With this batch they become a few times 1e-5 for tables, gains and biases
# (param_groups.group_rates), and Muon changes an entry of a matrix by about as much in a step.
SETTINGS: Record = {
    "data": "",
    "total_batch_size": 16_384,
    "embedding_lr": 2e-4,
    "unembedding_lr": 2e-4,
    "matrix_lr": 0.005,
    "scalar_lr": 0.002,
    "grad_clip": 1.0,
}
# Settings of generation_config.json that change answers and are not applied -> what changes nothing.
UNUSED: Record = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "num_beams": 1,
    "penalty_alpha": None,
    "guidance_scale": 1.0,
    "min_new_tokens": 0,
    "min_length": 0,
    "stop_strings": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
ROW = 2048  # most tokens of a row in training, unless a flag says another number


@options("files")
class Config(TagSettings):
    """Read a folder of `transformers`, a GGUF file or a model of the hub; write a checkpoint of a stage.

    Llama, Qwen2, Qwen3 and Gemma 3 can be read.
    """

    from_: str = option("", "folder, GGUF file, or hub:OWNER/NAME, with @REVISION for one of its commits")
    source: Literal["", Source] = option(
        "", "stage of the model (default: sft if it has a chat template of its own, else base)", short="-i"
    )
    tag = option("", "tag of the new run")
    context: Count = option(0, "tokens of the longest text (0: all that the model was made for)", least=16)
    template: str = option(
        "", "chat template: chatml, gemma, llama3, one that the model has by name, or a file (default: its own)"
    )
    template_values: str = option("", 'values that it is given, as JSON: {"enable_thinking": false}')


def main(config: Config) -> None:
    from nanochat.models import new_model, record_of
    from nanochat.train import State
    from tracks.bases.definition import Wanted
    from tracks.bases.families import FAMILIES
    from tracks.bases.sources import open_source
    from tracks.bases.tokenizer import PublicTokenizer
    from tracks.bases.weights import Weights
    from tracks.export.from_hf import save_imported

    if not config.from_:
        raise UserError("--from is missing: name a folder, a GGUF file, or hub:OWNER/NAME")
    outcome = Outcome.begin("bases", config.tag, config)
    # Everything but values is checked before anything is written, and they are read before the run is there.
    source = open_source(config.from_, config.context, Wanted(config.template, config.template_values))
    tokenizer = PublicTokenizer(_with_day(source.definition, config.tag))
    outcome.artifacts = source.hashes()
    stage = MODELS[config.source or ("sft" if source.templates else "base")]
    shape = source.config
    # As its maker samples; nanochat.chat reads top_k and top_p.
    greedy = source.generation.get("do_sample") is False
    temperature = 0.0 if greedy else source.generation.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    chosen = {"chat_temperature": temperature} if is_number and temperature >= 0 else {}
    record = {
        "stage": stage,
        "parent": None,
        "config": SETTINGS | {"max_seq_len": min(shape.max_seq_len, ROW), **chosen},
        "data": None,
        "source": None,
        "loop": asdict(State(step=0)),
        "dtype": "fp32",
        "model": record_of(shape),
        "public": {
            "from": config.from_,
            "architecture": FAMILIES[shape.family].architecture,
            "config": source.settings,
            "sides": source.sides,
            "generation": source.generation,
            "licence": source.licence,
            "licence_link": source.licence_link,
            "licence_texts": source.licence_texts,
            "files": outcome.artifacts,
        },
    }
    folder = save_imported(record, Weights(source), tokenizer, config.tag, 0)
    print0(f"import: {config.from_} is {folder}")
    print0(f"import: chat template: {_origin(source, config.template)}")
    if config.context > shape.max_seq_len:
        print0(
            f"import: the context is {shape.max_seq_len}, all that it was made for: --context makes it shorter alone"
        )
    if source.dropped:
        count, one = len(source.dropped), source.dropped[0]
        print0(f"import: added tokens left out, as the embedding has no row for them: {count}, such as {one}")
    unused = [name for name, neutral in UNUSED.items() if source.generation.get(name, neutral) not in (neutral, None)]
    if unused:
        print0(f"import: its maker also samples with {', '.join(unused)}, which nothing here applies")
    outcome.metrics = {
        "Architecture": FAMILIES[shape.family].architecture,
        "Parameters": sum(weight.numel() for weight in new_model(shape).parameters()),
        "Layers": shape.depth,
        "Width": shape.width,
        "Context": shape.max_seq_len,
        "Vocabulary": shape.vocab_size,
        "License": source.licence or NOT_KNOWN,
        "Stage": stage,
    }
    outcome.finish()


def _with_day(definition: "Definition", tag: str) -> "Definition":
    """Return a definition with the day of the tokenizer that a tag has already, if they differ in nothing else.

    So a model whose template asks for the date comes in as another stage of the same tag on another day.
    """
    from nanochat.paths import tokenizer_file
    from nanochat.tokenizer import Tokenizer
    from tracks.bases.tokenizer import PublicTokenizer

    path = tokenizer_file(tag)
    there = Tokenizer.load(path) if definition.day and path.is_file() else None
    if not isinstance(there, PublicTokenizer):
        return definition
    dated = replace(definition, day=there.definition.day)
    return dated if PublicTokenizer(dated).content_hash == there.content_hash else definition


def _origin(source: "FoundModel", asked: str) -> str:
    """Return in words where a model's chat template is from. asked: --template."""
    from tracks.bases.templates import DEFAULT, TEMPLATES, WITH_TOOLS

    if asked:
        return asked
    if source.templates:
        used = [name for name in (DEFAULT, WITH_TOOLS) if name in source.templates]
        others = [name for name in source.templates if name not in used]
        told = "its own" + (", of which conversations with tools have one for themselves" if len(used) > 1 else "")
        return told + (f"; not used: {', '.join(others)}" if others else "")
    found = source.definition.template
    names = [name for name, template in TEMPLATES.items() if found.endswith(template)]
    if not names:
        return "none; conversations need one, --template=chatml or a file"
    return f"{names[0]}, as it came without one and its vocabulary has the tokens"


if __name__ == "__main__":
    run_script(main)
