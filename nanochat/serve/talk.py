"""A talk with a model: the conversation, its answers shown as they come, and the commands beside them."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from nanochat.chat import Piece, Reply, fitted_prompt, parts
from nanochat.engine import Engine, Request
from nanochat.log import say
from nanochat.paths import base_dir
from nanochat.restore import load_model, trained
from nanochat.serve.terminal import NOTE, Shown, colored, heeding
from nanochat.stages import MODELS

SAVED = "chat_cli/conversations.jsonl"  # below the base folder


class Talk:
    """config: scripts.chat_cli's. out: where answers go, all else goes to stderr. attended: Ctrl-C ends an answer only.

    A base model has no conversation: each message is the beginning of a text, and the answer is how it goes on.
    """

    def __init__(self, config: Any, runtime: Any, out: TextIO, attended: bool):
        self.config, self.runtime, self.out, self.attended = config, runtime, out, attended
        self.source, self.system, self.messages = "", "", []
        self.answers = self.lost = 0
        self.switch(config.source, config.tag, config.step)

    def switch(self, source: str, tag: str, step: int) -> None:
        """Another model; it reads what was said before, unless one of the two is a base model. step -1: the newest."""
        source, tag = trained(source, tag)[-1]
        model, tokenizer, checkpoint = load_model(MODELS[source], tag, None if step < 0 else step, self.runtime)
        if "base" in (self.source, source):
            self.messages = []
        self.engine, self.tokenizer = Engine(model, tokenizer, slots=1), tokenizer
        self.source, self.tag, self.step = source, tag, checkpoint.step

    def hear(self, message: str) -> bool:
        """A command, or what is said to the model; whether the talk goes on."""
        name, _, rest = message.partition(" ")
        if not name.startswith("/"):
            self.ask(message)
        elif name in COMMANDS:
            COMMANDS[name][1](self, rest.strip())
        else:
            raise ValueError(f"there is no command {name}: /help names all; a blank before it makes it a message")
        return name != "/quit"

    def ask(self, text: str) -> None:
        before = [] if self.source == "base" else self.messages
        self.answer([*before, {"role": "user", "content": text.encode(errors="replace").decode()}])

    def answer(self, asked: list[dict]) -> None:
        """The model's turn behind these messages, which with it are the conversation from then on."""
        request, reply, end = self._request(asked), Reply(self.tokenizer), "stop"
        pieces: list[Piece] = []
        self.answers += 1
        with (
            heeding(self.attended) as stopped,
            closing(Shown(self.out)) as shown,
            closing(self.engine.stream([request])) as events,
        ):
            for event in events:
                new = reply.close() if event.token is None else reply.add(event.token)
                pieces += new
                shown.add(new)
                end = "interrupted" if stopped else event.reason or end
                if stopped:
                    break
        content = parts(pieces)
        if all(part["type"] == "text" for part in content):
            content = "".join(part["text"] for part in content)
        if content or end != "interrupted":
            self.messages = [*asked, {"role": "assistant", "content": content}]
        if end != "stop":
            self.note("cut, see --max-new-tokens" if end == "length" else end)

    def _request(self, asked: list[dict]) -> Request:
        """What the model reads; what does not fit is told whenever it is more than before."""
        config, context, bos = self.config, self.engine.config.max_seq_len, self.tokenizer.special_tokens["<|bos|>"]
        if self.source == "base":
            ids, room = self.tokenizer.encode(asked[-1]["content"]), max(context - config.max_new_tokens, context // 2)
            ids, lost, stop = [bos, *ids[1 - room :]], int(len(ids) >= room), frozenset([bos])
        else:
            conversation, stop = self.conversation(asked), None
            ids, lost = fitted_prompt(conversation, self.tokenizer, context, config.max_new_tokens)
        if lost > self.lost:
            what = f"its {lost} oldest messages are" if lost % 2 == 0 else "all but the end of the last message is"
            self.note(f"the conversation is too long for {context:,} tokens: {what} left out")
        self.lost = lost
        settings = {name: getattr(config, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}
        return Request(ids, **settings, seed=config.seed + self.answers, stop=stop)

    def conversation(self, messages: list[dict]) -> dict:
        return {"messages": [{"role": "system", "content": self.system}] * bool(self.system) + messages}

    def note(self, text: str) -> None:
        """Something that no model says."""
        say(colored(NOTE, text, sys.stderr), file=sys.stderr)


# ---- the commands: what they do, and how, given what stands behind their names ----


def _help(talk: Talk, rest: str) -> None:
    lines = [f"{name:8} {what}" for name, (what, _) in COMMANDS.items()]
    talk.note("\n".join([*lines, 'Several lines: end a line with \\, or put """ or ``` before and behind them.']))


def _clear(talk: Talk, rest: str) -> None:
    talk.messages, talk.lost = [], 0
    talk.note("a new conversation" + ", in which the system says what it said" * bool(talk.system))


def _system(talk: Talk, rest: str) -> None:
    talk.system = rest
    talk.note("the system says so, before the conversation" if rest else "the system says nothing")


def _undo(talk: Talk, rest: str) -> None:
    talk.messages = talk.messages[:-2]
    talk.note(f"{len(talk.messages) // 2} questions are left")


def _again(talk: Talk, rest: str) -> None:
    if not talk.messages:
        raise ValueError("nothing has been asked")
    talk.answer(talk.messages[:-1])


def _save(talk: Talk, rest: str) -> None:
    if not talk.messages or talk.source == "base":
        raise ValueError("there is no conversation to save")
    path = Path(rest).expanduser() if rest else base_dir() / SAVED
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(talk.conversation(talk.messages), ensure_ascii=False) + "\n")
    talk.note(f"the conversation is a line of {path}")


def _model(talk: Talk, rest: str) -> None:
    source, tag, step, *more = [*rest.split(), *["", "", ""][len(rest.split()) :]]
    if more or not (step or "0").isdecimal():
        raise ValueError(f"/model {rest}: it takes a source, a tag and a step's number")
    if source:
        talk.switch(source, tag or talk.tag, int(step or -1))
    there = ", ".join(f"{source} {tag}" for source, tag in trained())
    talk.note(f"the model is {talk.source} {talk.tag}, step {talk.step:,}; trained are {there}")


COMMANDS: dict[str, tuple[str, Callable[[Talk, str], None]]] = {
    "/help": ("this", _help),
    "/clear": ("begin a new conversation", _clear),
    "/undo": ("take back the last question and its answer", _undo),
    "/again": ("another answer to the last question", _again),
    "/system": ("TEXT: what the system says before the conversation, nothing: no more", _system),
    "/save": ("[FILE]: add the conversation to a file that --mixture=json:FILE learns from", _save),
    "/model": ("[SOURCE [TAG [STEP]]]: show the models that there are, or go on with another", _model),
    "/quit": ("leave, like Ctrl-D", lambda talk, rest: None),
}
