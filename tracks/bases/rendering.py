"""Conversations as a chat template writes them: Jinja over messages, as `transformers` renders them, in a sandbox.

A template sees the messages, the tools, and a few functions; it reaches no attribute that Python keeps to itself, no
file and no module.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from nanochat.errors import TemplateError, UserError

if TYPE_CHECKING:
    from jinja2.parser import Parser

# Marks around what is learned, and one behind each letter of a special token's name in a text: no text has them.
BEGIN, END, BREAK = "\U000f51a1", "\U000f51a2", "\U000f51a3"
# Variables that each rendering sets.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "marks"})


class Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`: what the assistant writes, between marks if `marks` is set."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: "Parser") -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _marked(self, context: jinja2.runtime.Context, caller: Callable[[], str]) -> str:
        written = caller()
        return f"{BEGIN}{written}{END}" if context.get("marks") else written


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Write JSON as it is: the filter of Jinja escapes for HTML. Marks stay what they are."""
    written = json.dumps(value, ensure_ascii=False, indent=indent, **options)
    others = rf"[^\x00-\x7f{BEGIN}{END}{BREAK}]+"
    return re.sub(others, lambda found: json.dumps(found[0])[1:-1], written) if ensure_ascii else written


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment(day: datetime) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    more: Any = {"raise_exception": _refuse, "strftime_now": day.strftime}
    environment.globals.update(more)
    return environment


class Renderer:
    """A chat template's source, and what it writes.

    variables: that it is given beside the conversation. day: what a template that asks for the date is told, like
    2026-11-27; always the same, so that training can be repeated on another day.
    """

    def __init__(self, source: str, variables: Mapping[str, str], day: str) -> None:
        self.source = source
        self.variables = dict(variables)
        environment = _environment(datetime.fromisoformat(day or "2026-01-01"))
        try:
            self._template = environment.from_string(source)
            self._tree = environment.parse(source)
        # Nested too deep, or a constant too large, is an error of Python.
        except Exception as error:
            raise UserError(f"its chat template cannot be read: {_line(error)}") from None
        # Whether it marks what the assistant writes: `Generation` makes such nodes.
        self.marks_itself = self._tree.find(jinja2.nodes.ExtensionAttribute) is not None

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = False,
        marks: bool = False,
    ) -> str:
        """Return messages as the template writes them. prompt: up to where the assistant begins to write."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                marks=marks and self.marks_itself,
                **self.variables,
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses the conversation: {_line(error)}") from None
        # Whatever a template computes may fail: an index, a sum of a text and a number, a text too long for memory.
        except Exception as error:
            raise TemplateError(f"the chat template fails for the conversation: {_line(error)}") from None

    @cached_property
    def asks_for_none(self) -> bool:
        """Whether the template asks if a message's content is none, as some do before they write calls."""
        asked = [test.node for test in self._tree.find_all(jinja2.nodes.Test) if test.name == "none"]
        keys = {node.attr for node in asked if isinstance(node, jinja2.nodes.Getattr)}
        items = [node.arg for node in asked if isinstance(node, jinja2.nodes.Getitem)]
        keys |= {item.value for item in items if isinstance(item, jinja2.nodes.Const)}
        return "content" in keys

    def sought(self) -> list[str]:
        """Return the texts that the template looks for in others, as in `'</think>' in content`."""
        values = [
            compared.expr
            for compared in self._tree.find_all(jinja2.nodes.Compare)
            if compared.ops[0].op in ("in", "notin")
        ]
        for call in self._tree.find_all(jinja2.nodes.Call):
            if isinstance(call.node, jinja2.nodes.Getattr):  # content.split('</think>')
                values += call.args
        return [one.value for one in values if isinstance(one, jinja2.nodes.Const) and isinstance(one.value, str)]


def _line(error: Exception) -> str:
    """Return an error's first line, or its type."""
    return str(error).partition("\n")[0] or type(error).__name__
