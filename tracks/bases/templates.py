"""Which chat template a model has: one of its own by name, one with values set, or a usual one if it has none.

A base model learns the usual one in fine-tuning. Each uses special tokens of a family's vocabulary, in the order in
which the family's own chat models write them.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import jinja2

from nanochat.chat import messages
from nanochat.errors import UserError
from tracks.bases.rendering import RESERVED
from tracks.bases.special_names import is_text
from tracks.bases.template import JinjaTemplate
from tracks.bases.tokenizer import Definition, PublicTokenizer

# Turns between <|im_start|> and <|im_end|>, each with its role on the first line: Qwen, SmolLM.
CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
# A system message stands before the first question.
GEMMA = """\
{{- bos_token -}}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in (messages[1:] if system else messages) -%}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' -}}
    {{- (system if loop.first else '') + message.content + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""
LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""
SAID = ("probe of a question", "probe of an answer")  # no template has these words of its own
# Of a model that has several by name, the ones that are used, as `transformers` chooses.
DEFAULT, WITH_TOOLS = "default", "tool_use"
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "llama3": LLAMA3}
TURN_ENDS = {"chatml": "<|im_end|>", "gemma": "<end_of_turn>", "llama3": "<|eot_id|>"}  # what ends a turn in each


def joined_template(named: Mapping[str, str]) -> str:
    """Return one template for those that a model has by name; empty if none is for all conversations."""
    default, with_tools = (named.get(name, "").removesuffix("\n") for name in (DEFAULT, WITH_TOOLS))
    if not (default and with_tools):
        return default
    # A line break behind a block is not written, and each begins its line as it did; blanks at its end stay (+).
    return f"{{% if tools is not none %}}\n{with_tools}{{%+ else %}}\n{default}{{%+ endif %}}"


def usual_template(special_tokens: Collection[str]) -> str:
    """Return the template for a vocabulary with these special tokens; empty if it has those of none."""
    return next((TEMPLATES[name] for name, turn_end in TURN_ENDS.items() if turn_end in special_tokens), "")


def named_template(name: str, special_tokens: Collection[str]) -> str:
    """Return a template by its name; where a vocabulary lacks the token that ends a turn, its eos_token does."""
    turn_end = TURN_ENDS[name]
    return TEMPLATES[name] if turn_end in special_tokens else TEMPLATES[name].replace(f"'{turn_end}", "eos_token + '")


def with_values(template: str, values: str) -> str:
    """Return a template that sets variables first. values: a JSON object, such as {"enable_thinking": false}."""
    try:
        found = json.loads(values, parse_constant=_refuse_constant)
        written = _literal(found)
    except (ValueError, RecursionError):
        found, written = None, ""
    if not isinstance(found, dict) or not all(name.isidentifier() for name in found):
        raise UserError(f"--template-values={values[:200]} is no JSON object whose keys are names")
    if not is_text(written):
        raise UserError("--template-values has half a character, which is no text: write the whole one")
    if taken := RESERVED.intersection(found):
        raise UserError(f"--template-values: {min(taken)} is what the template is rendered with, and cannot be set")
    for name in found:
        if not _is_variable(name):
            raise UserError(f"--template-values: {name} is a word of Jinja, and cannot be set")
    if not template:
        raise UserError("--template-values needs a chat template, and this model has none: name one with --template")
    # The line break behind each is not written (trim_blocks).
    return "".join(f"{{% set {name} = {_literal(value)} %}}\n" for name, value in found.items()) + template


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _is_variable(name: str) -> bool:
    """Return False for a word that has a meaning in Jinja, as none and true."""
    try:
        jinja2.Environment().parse(f"{{% set {name} = 1 %}}{{{{ {name} }}}}")
    except jinja2.TemplateSyntaxError:
        return False
    return True


def _literal(value: Any) -> str:
    """Return a value of JSON as Jinja writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def turn_end(definition: Definition) -> list[int]:
    """Return the token that a template writes behind an answer, if it is a special one.

    UserError for a template that leaves out what the user or the assistant says, as any other text would.
    """
    tokenizer = PublicTokenizer(definition)
    assert isinstance(tokenizer.template, JinjaTemplate)
    written = tokenizer.template.renderer.text([*map(dict, messages(SAID))])
    for role, said in zip(("user", "assistant"), SAID, strict=True):
        if said not in written:
            raise UserError(f"its chat template does not write what the {role} says: choose another by --template")
    special = set(tokenizer.special_tokens.values())
    ids = tokenizer.template.ids_of(messages(["Who?", "I."]))
    spoken = tokenizer.encode("I.")[-1:]  # a vocabulary may have neither
    behind = ids[len(ids) - ids[::-1].index(spoken[0]) :] if spoken and spoken[0] in ids else []
    return [id for id in behind if id in special][:1]
