"""Calls of tools in a conversation, and how a chat template takes and writes them, found by rendering some."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nanochat.errors import TemplateError
from nanochat.protocols import CallForm, Message
from tracks.bases.rendering import Renderer
from tracks.bases.special_names import Span, SpecialNames

PROBE = "probe_of_calls"  # name of a tool, and of its argument, in a rendering: no template has this word of its own


def find_call_form(renderer: Renderer, special: SpecialNames) -> CallForm | None:
    """Return how calls are written; None if no JSON with a call's name and arguments is, or no tool is offered."""
    call = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": {PROBE: 1}}}
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": PROBE, "description": PROBE, "parameters": parameters}}]
    question = {"role": "user", "content": "Hi"}
    try:
        told, untold = (renderer.text([question], offered, prompt=True) for offered in (tools, None))
        written = renderer.text([question, {"role": "assistant", "content": "", "tool_calls": [call]}], tools)
    except TemplateError:
        return None
    found = [] if told == untold else list(_probes(written))
    if not found:
        return None
    (start, end), name, arguments = found[-1]  # behind an example, if the template shows one
    # A list of calls has brackets, and special tokens are not shown: the mark is the word beside those.
    before = special.pattern.sub("\n", written.removeprefix(told)[: start - len(written)]).rstrip(" \n[")
    after = special.pattern.sub("\n", written[end:]).lstrip(" \n]")
    mark = re.split(r"\s", before)[-1]
    if not written.startswith(told) and not mark.startswith(("<", "[")):
        return None
    try:
        renderer.text([question, {"role": "assistant", "content": "", "tool_calls": [call, call]}], tools)
        several = True
    except TemplateError:
        several = False
    return CallForm(mark, re.split(r"\s", after)[0], name, arguments, several)


def takes_text_arguments(renderer: Renderer) -> Mapping[bool, bool]:
    """Return whether arguments of calls have to be a text, as an API gives them; by whether tools are offered.

    Most templates take objects. Those that add arguments to a text fail, or write the object as Python does.
    """
    tool = {"type": "function", "function": {"name": "tool", "description": "", "parameters": {}}}

    def writes(arguments: Any, tools: Any) -> bool:
        call = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": arguments}}
        for content in ("", None):  # some write calls only beside no content
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                text = renderer.text([{"role": "user", "content": "Hi"}, answer], tools)
            except TemplateError:
                continue
            if PROBE in text and (isinstance(arguments, str) or str(arguments) not in text):
                return True
        return False

    return {
        tools is not None: not writes({PROBE: 1}, tools) and writes(json.dumps({PROBE: 1}), tools)
        for tools in (None, [tool])
    }


def calls_of(message: Message, as_text: bool) -> dict[str, Any]:
    """Return the calls of tools in a message; arguments in a text, as APIs have them, become the object that it is.

    as_text: the template adds them to a text, so they become one.
    """
    calls = [dict(call) for call in message.get("tool_calls") or []]
    for call in calls:
        function = call.get("function", call)
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                found = json.loads(arguments or "{}")
                json.dumps(found, ensure_ascii=False).encode()  # half a character is an error
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise TemplateError(f"the arguments of a call are no JSON object: {arguments[:80]}")
            arguments = (arguments or "{}") if as_text else found
        elif isinstance(arguments, dict) and as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        else:
            continue
        changed = {**function, "arguments": arguments}
        call.update({"function": changed} if "function" in call else changed)
    return {"tool_calls": calls} if calls else {}


def check_calls(messages: Sequence[Mapping[str, Any]], written: str) -> None:
    """Raise a TemplateError if the names of called tools are not in what a template has written for these messages."""
    for message in messages:
        for call in (message.get("tool_calls") or []) if message["role"] == "assistant" else []:
            function = call.get("function", call)
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or name not in written:
                raise TemplateError(f"the chat template does not write the call of {name}")


def _probes(text: str) -> Iterator[tuple[Span, str, str]]:
    """Yield where the call of the probe stands as JSON in a text, and the keys of its name and its arguments."""
    for place in re.finditer(r"\{", text):
        try:
            value, end = json.JSONDecoder().raw_decode(text, place.start())
        except (ValueError, RecursionError):  # nested too deep
            continue
        keys = {json.dumps(content): key for key, content in value.items()}
        name, arguments = keys.get(json.dumps(PROBE)), keys.get(json.dumps({PROBE: 1}))
        if name and arguments:
            yield (place.start(), end), name, arguments
