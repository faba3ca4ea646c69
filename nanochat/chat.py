"""Conversations to token ids, with a mask of what a model learns to say.

A conversation is {"messages": [{"role", "content"}, …]}: perhaps one message of the role system, then user and
assistant in turn. Content is a text, or a list of parts {"type", "text"} of the types in PARTS; only an assistant has
parts that are no text.
"""

import itertools
from typing import Any

ROLES = ("user", "assistant")
# Type of a part -> the name of the special tokens around it, and whether it is the assistant's own: what the calculator
# answers is not.
PARTS = {"text": ("", True), "python": ("python", True), "python_output": ("output", False)}


def check(conversation: Any) -> None:
    """A ValueError says what is malformed; messages are counted from 1."""
    messages = conversation.get("messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ValueError("a conversation has a list `messages`, and at least one message in it")
    first = _has_system(messages)
    if len(messages) == first:
        raise ValueError("the system message has no user's message behind it")
    for number, message in enumerate(messages, 1):
        due = "system" if number <= first else ROLES[(number - first - 1) % 2]
        if fault := _fault(message, due):
            raise ValueError(f"message {number}: {fault}")


def render(conversation: dict, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids of a whole conversation; the mask is 1 on all that the assistant says or asks its calculator, else 0."""
    special, ids, mask = tokenizer.special_tokens, [], []

    def add(tokens: list[int], learned: bool) -> None:
        ids.extend(tokens)
        mask.extend([int(learned)] * len(tokens))

    add([special["<|bos|>"]], False)
    for role, parts in _turns(conversation):
        is_ours = role == "assistant"
        add([special[f"<|{role}_start|>"]], False)
        for kind, text in parts:
            name, own = PARTS[kind]
            tokens = tokenizer.encode(text)
            if name:
                tokens = [special[f"<|{name}_start|>"], *tokens, special[f"<|{name}_end|>"]]
            add(tokens, is_ours and own)
        add([special[f"<|{role}_end|>"]], is_ours)
    return ids, mask


def render_prompt(conversation: dict, tokenizer: Any) -> list[int]:
    """Ids up to where the assistant begins to speak; what it says last in the conversation, if it does, is left out."""
    check(conversation)
    messages = conversation["messages"]
    asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    return [*render({"messages": asked}, tokenizer)[0], tokenizer.special_tokens["<|assistant_start|>"]]


def fitted_prompt(conversation: dict, tokenizer: Any, context: int, answer: int) -> tuple[list[int], int]:
    """The prompt, with room for an answer of so many tokens, but at most half of the context; how many turns are lost.

    The oldest go first, with what was answered; what the system says stays. Of the last one only the beginning goes,
    which counts as a turn.
    """
    ids, room, lost = render_prompt(conversation, tokenizer), max(context - answer, context // 2), 0
    first = _has_system(conversation["messages"])
    system, turns = conversation["messages"][:first], conversation["messages"][first:]
    while len(ids) > room and len(turns) > 2:
        turns, lost = turns[2:], lost + 2
        ids = render_prompt({"messages": system + turns}, tokenizer)
    if len(ids) <= room:
        return ids, lost
    before, _ = render({"messages": [*system, {"role": "user", "content": ""}]}, tokenizer)
    kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, before, strict=False)))
    kept = min(kept, room - 2)  # and how the turn ends
    return ids[:kept] + ids[len(ids) - (room - kept) :], lost + 1


def _has_system(messages: list) -> bool:
    return isinstance(messages[0], dict) and messages[0].get("role") == "system"


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _fault(message: Any, due: str) -> str:
    """What is wrong with a message where one of the role `due` has to stand; empty: nothing."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        return "it needs a `role` and a `content`"
    if message["role"] != due:
        return f"its role is {message['role']!r} where {due!r} is due: user and assistant take turns"
    parts = _parts(message["content"])
    if not isinstance(parts, list) or not parts:
        return "its content is neither a text nor a list of parts"
    allowed = tuple(PARTS) if due == "assistant" else ("text",)
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return "a part of its content has no `text`"
        if part.get("type") not in allowed:
            return f"a part of its content is of type {part.get('type')!r}, {due} has {', '.join(allowed)}"
    return ""


def _turns(conversation: dict) -> list[tuple[str, list[tuple[str, str]]]]:
    """(role, [(type, text), …]) of each turn; what the system says stands before the first user's words."""
    check(conversation)
    messages = conversation["messages"]
    turns = [(message["role"], [(p["type"], p["text"]) for p in _parts(message["content"])]) for message in messages]
    if _has_system(messages):
        (_, instructions), (role, [(kind, text), *more]), *rest = turns
        head = "".join(said for _, said in instructions)
        turns = [(role, [(kind, f"{head}\n\n{text}"), *more]), *rest]
    return turns
