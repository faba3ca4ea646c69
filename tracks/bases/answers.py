"""Which tokens of a rendered conversation the assistant writes, found by rendering.

A template that marks them itself, with `{% generation %}`, is taken at its word. Otherwise an answer is what follows
its prompt, up to the end of the turn. Where a template writes an old answer in another way than it asks for one, the
answer is found by marks around its content.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from nanochat.errors import TemplateError
from tracks.bases.calls import check_calls
from tracks.bases.rendering import BEGIN, END, Renderer
from tracks.bases.special_names import Span, SpecialNames

Token = tuple[int, Span]  # with its characters


class Rendered(NamedTuple):
    """A conversation, and what the template writes for it."""

    messages: Sequence[dict[str, Any]]
    tools: Any
    text: str
    tokens: Sequence[Token]


class Answers:
    """Finds answers for one template. turn_ends: tokens that end a turn."""

    def __init__(self, renderer: Renderer, special: SpecialNames, turn_ends: frozenset[int]) -> None:
        self.renderer = renderer
        self.special = special
        self.turn_ends = turn_ends

    def mask(self, rendered: Rendered) -> list[int]:
        """Return 1 for each token that the assistant writes, else 0; TemplateError if that cannot be found."""
        mask = [0] * len(rendered.tokens)
        if self.renderer.marks_itself:
            spans = _spans(rendered.text, self.renderer.text(rendered.messages, rendered.tools, marks=True))
            if spans is None:
                raise TemplateError("the chat template writes another text where it marks what the assistant writes")
            for start, stop in spans:
                for place, (_, span) in enumerate(rendered.tokens):
                    if span[1] > start and span[0] < stop:
                        mask[place] = 1
            if spans:  # else it has not marked this conversation, as one of two templates that were joined may not
                check_calls(rendered.messages, "".join(rendered.text[start:stop] for start, stop in spans))
                return mask
        for number, message in enumerate(rendered.messages):
            if message["role"] == "assistant":
                span = self._find(rendered, number)
                if span is None:
                    raise TemplateError("it cannot be found in the chat template which tokens the assistant writes")
                check_calls([message], rendered.text[slice(*span)])
                self._learn(mask, rendered, span)
        return mask

    def _find(self, rendered: Rendered, number: int) -> Span | None:
        """Return where a message of the assistant stands in the text; None if it cannot be found.

        Calls are written beside the content: where marks around it would not tell, the turn does.
        """
        span = self._behind_prompt(rendered, number)
        if span is None and rendered.messages[number].get("tool_calls"):
            span = self._to_turn_end(rendered, number)
            return span or self._around_call(rendered, number)
        return span or self._around_content(rendered, number)

    def _behind_prompt(self, rendered: Rendered, number: int) -> Span | None:
        """Return where a message stands, from the end of its prompt on; None if the text does not go on like that."""
        try:
            prompt = self.renderer.text(rendered.messages[:number], rendered.tools, prompt=True)
            until = self.renderer.text(rendered.messages[: number + 1], rendered.tools)
        except TemplateError:  # a template may ask for an end by the assistant, or the user
            return None
        if rendered.text.startswith(until) and until.startswith(prompt):
            return len(prompt), len(until)
        return None

    def _to_turn_end(self, rendered: Rendered, number: int) -> Span | None:
        """Return where a message stands, from the end of its prompt to the next end of a turn, if there is one."""
        try:
            prompt = self.renderer.text(rendered.messages[:number], rendered.tools, prompt=True)
        except TemplateError:  # as in _behind_prompt
            return None
        stop = self._next_turn_end(rendered.tokens, len(prompt))
        return (len(prompt), stop) if stop and rendered.text.startswith(prompt) else None

    def _around_call(self, rendered: Rendered, number: int) -> Span | None:
        """Return where a message with calls stands whose prompt the text has in another form, as without old thoughts.

        The name of its first call is found by marks; the message begins behind the last opening of a turn before it.
        """
        first, *others = rendered.messages[number]["tool_calls"]
        function = first.get("function", first)
        if not isinstance(function, dict):
            return None
        marked_function = {**function, "name": f"{BEGIN}{function.get('name')}{END}"}
        marked_call = {**first, "function": marked_function} if "function" in first else marked_function
        marked = list(rendered.messages)
        marked[number] = {**rendered.messages[number], "tool_calls": [marked_call, *others]}
        earlier = rendered.messages[:number]
        try:
            found = _spans(rendered.text, self.renderer.text(marked, rendered.tools))
            before, prompt = (self.renderer.text(earlier, rendered.tools, prompt=asked) for asked in (False, True))
        except TemplateError:  # a template may look at names
            return None
        opening = prompt.removeprefix(before)
        if not found or not 0 < len(opening) < len(prompt):
            return None
        start = rendered.text.rfind(opening, 0, found[0][0]) + len(opening)
        stop = self._next_turn_end(rendered.tokens, found[0][1])
        is_own = start >= len(opening) and self._next_turn_end(rendered.tokens, start) == stop  # no turn ends between
        return (start, stop) if is_own and stop else None

    def _next_turn_end(self, tokens: Sequence[Token], place: int) -> int | None:
        """Return the character behind the first end of a turn from a place on."""
        return next((span[1] for id, span in tokens if id in self.turn_ends and span[0] >= place), None)

    def _around_content(self, rendered: Rendered, number: int) -> Span | None:
        """Return where a message's content stands, or what the template leaves of it; None if it changes all of it."""
        content = rendered.messages[number]["content"]
        for start, stop in (_all(content), _words(content), *_behind_tags(content, self.renderer.source)):
            marked = list(rendered.messages)
            inner = content[:start] + BEGIN + content[start:stop] + END + content[stop:]
            marked[number] = {**rendered.messages[number], "content": inner}
            try:
                found = _spans(rendered.text, self.renderer.text(marked, rendered.tools))
            except TemplateError:  # a template may look at contents
                continue
            if found:
                return found[0]
        return None

    def _learn(self, mask: list[int], rendered: Rendered, span: Span) -> None:
        """Set the mask for the tokens of a span, up to the end of the turn; that may stand behind it, after blanks."""
        behind: list[int] = []
        for place, (id, (start, stop)) in enumerate(rendered.tokens):
            # A special token may have taken blanks from the span.
            if stop <= span[0] or (start < span[0] and id in self.special.ids):
                continue
            if id in self.turn_ends and start >= span[0]:
                for one in (*behind, place):
                    mask[one] = 1
                return
            if start < span[1]:
                mask[place] = 1
            elif rendered.text[start:stop].isspace():
                behind.append(place)
            else:
                return


def _spans(text: str, marked: str) -> list[Span] | None:
    """Return the spans between marks, in the text without them; None if the rest differs, or a mark is missing."""
    pieces = re.split(f"([{BEGIN}{END}])", marked)
    places = list(accumulate(len(piece) for piece in pieces[::2]))[:-1]  # of each mark
    if "".join(pieces[::2]) != text or "".join(pieces[1::2]) != (BEGIN + END) * (len(places) // 2):
        return None
    return list(zip(places[::2], places[1::2], strict=True))


# ---- the part of a content that a template may leave as it is ----


def _all(content: str) -> Span:
    return 0, len(content)


def _words(content: str) -> Span:
    """The content without blanks around it."""
    start = len(content) - len(content.lstrip())
    return start, max(start, len(content.rstrip()))


def _behind_tags(content: str, template: str) -> Iterator[Span]:
    """What stands behind a closing tag, in which a thought may end; first behind those that the template names."""
    tags = re.finditer(r"</\w+>", content)
    for tag in sorted(tags, key=lambda tag: tag[0] not in template):
        start, stop = _words(content[tag.end() :])
        yield start + tag.end(), stop + tag.end()
