"""The chat in a terminal or a pipe: messages in, streamed answers out, and a few commands."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from nanochat.chat import Piece, Reply, fitted_prompt, parts, render_text
from nanochat.config import collect_signals
from nanochat.engine import Engine, Request
from nanochat.errors import UserError
from nanochat.log import harmless, print_line
from nanochat.protocols import Conversation, Message

QUOTES = '"' * 3  # around a message of several lines
HISTORY_LINES = 1000  # kept in the file
COMMANDS = "/clear starts a new conversation, /system TEXT sets the system message, /quit or Ctrl-D leaves"
# Around the calculator's turns: [12+34][= 46]
MARKS = {"python": "[", "python_output": "[= ", "text": "]"}


# ---- messages in ----


def whole_message(lines: list[str]) -> str | None:
    """Return the message that these lines are; None if it goes on in the next line.

    It does after a line that ends with a backslash, and between a line that begins with QUOTES and one that ends so.
    """
    text = "\n".join(lines)
    if text.startswith(QUOTES):
        is_closed = text.rstrip().endswith(QUOTES) and len(text.rstrip()) >= 2 * len(QUOTES)
        return unfinished(lines).rstrip().removesuffix(QUOTES).removesuffix("\n") if is_closed else None
    return None if text.endswith("\\") else unfinished(lines)


def unfinished(lines: list[str]) -> str:
    """Return the text of a message so far, without the marks that let it go on."""
    text = "\n".join(lines)
    if text.startswith(QUOTES):
        return text.removeprefix(QUOTES).removeprefix("\n")
    return "\n".join(line.removesuffix("\\") for line in lines)


def piped_messages(stream: Iterable[str]) -> Iterator[str]:
    """Yield the messages in the lines of a pipe."""
    lines = []
    for line in stream:
        lines.append(line.removesuffix("\n"))
        message = whole_message(lines)
        if message is not None:
            lines = []
            yield message
    if lines:
        yield unfinished(lines)


def typed_messages(history: Path) -> Iterator[str]:
    """Yield typed messages until Ctrl-D or Ctrl-C; Ctrl-C in a message of several lines gives this message up.

    history: the file for the arrow keys.
    """
    keep_line = _open_history(history)
    lines = []
    while True:
        try:
            lines.append(input("... " if lines else "> "))
        except (EOFError, KeyboardInterrupt) as end:
            print()
            if not lines or isinstance(end, EOFError):
                return
            lines = []
            continue
        keep_line()
        message = whole_message(lines)
        if message is not None:
            lines = []
            yield message


def _open_history(path: Path) -> Callable[[], None]:
    """Let `input` edit lines, with those of earlier chats for the arrow keys; return what keeps the newest line."""
    try:
        import readline
    except ImportError:  # Python can be built without it
        return lambda: None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.chmod(0o600)  # only the owner reads what was asked
        if path.stat().st_size:  # libedit refuses an empty file
            readline.read_history_file(path)
    except OSError as error:
        print_note(f"{error}: the lines of this chat are not kept")
        return lambda: None
    readline.set_history_length(HISTORY_LINES)
    kept = readline.get_current_history_length()

    def keep() -> None:
        # At once: a terminal that closes ends the process.
        nonlocal kept
        count = readline.get_current_history_length()
        # A line that is empty, or the same as the one before, is not new.
        if count == kept:
            return
        try:
            if hasattr(readline, "append_history_file"):
                readline.append_history_file(count - kept, path)  # another chat may write there too
            else:  # libedit, on macOS
                readline.write_history_file(path)
        except OSError as error:  # a full disk does not end the chat
            print_note(f"{error}: this line is not kept")
        kept = count

    return keep


# ---- answers out ----


def print_pieces(pieces: list[Piece], stream: TextIO) -> None:
    """Print pieces of an answer, the calculator's turns on a terminal only."""
    for piece in pieces:
        if stream.isatty():
            # A piece without text begins a part.
            print(end=harmless(piece.text or MARKS[piece.kind]), file=stream, flush=True)
        elif piece.kind == "text":
            print(end=piece.text, file=stream, flush=True)


def print_note(text: str) -> None:
    """Print our own text to stderr."""
    print_line(text, file=sys.stderr)


# ---- the conversation ----


@dataclass
class TerminalChat:
    """A conversation with a model. interactive: Ctrl-C ends an answer, not the process.

    settings: sampling settings; each answer adds 1 to the seed. out: the stream for answers. A base model does not know
    conversations: each message is the beginning of a text, and the answer continues it.
    """

    engine: Engine
    is_base: bool
    settings: Request
    out: TextIO
    interactive: bool
    system: str = ""  # message, empty: none
    messages: list[Message] = field(default_factory=list)

    def converse(self, messages: Iterator[str]) -> None:
        """Handle messages until /quit. In an interactive chat, an error is printed and does not end the chat."""
        for message in messages:
            if message == "/quit":
                return
            if not message.strip():
                continue
            try:
                self.handle(message)
            except UserError as error:
                if not self.interactive:
                    raise
                print_note(str(error))

    def handle(self, message: str) -> None:
        """Run a command, or answer a message."""
        name, _, rest = message.partition(" ")
        if not name.startswith("/"):
            self.ask(message)
        elif name == "/clear":
            self.messages = []
        elif name == "/system":
            self.system = rest.strip()
        else:
            raise UserError(f"there is no command {name}: {COMMANDS}; put a blank before it to send a message")

    def ask(self, text: str) -> None:
        """Answer a message. Both become part of the conversation."""
        content = text.encode(errors="replace").decode()  # no halves of surrogate pairs
        messages: list[Message] = [*self.messages, {"role": "user", "content": content}]
        tokenizer = self.engine.tokenizer
        if self.is_base:
            tokens = render_text({"messages": messages}, tokenizer)
        else:
            system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
            # The oldest messages make room for the answer.
            context = self.engine.config.max_seq_len
            conversation: Conversation = {"messages": [*system, *messages]}
            tokens, cut = fitted_prompt(conversation, tokenizer, context, self.settings.max_new_tokens)
            if cut:
                print_note(f"the conversation is too long for {context} tokens, its beginning is left out")
        request = replace(self.settings, tokens=tokens)
        self.settings = replace(self.settings, seed=self.settings.seed + 1)
        reply = Reply(tokenizer)
        pieces: list[Piece] = []
        written = 0
        reason = ""
        with (
            # No exception at Ctrl-C: it could cut an engine's step in the middle.
            collect_signals(signal.SIGINT) if self.interactive else nullcontext([]) as interrupts,
            closing(self.engine.stream([request])) as events,
        ):
            for event in events:
                reason = event.reason  # the last event has one
                written += event.token is not None
                new = reply.close() if event.token is None else reply.feed(event.token)
                pieces += new
                print_pieces(new, self.out)
                if interrupts:
                    break  # closing the events frees the engine's slot
        print(file=self.out)
        if reason == "length":
            is_full = written < self.settings.max_new_tokens
            context = self.engine.config.max_seq_len
            print_note(
                f"the context of {context:,} tokens is full" if is_full else "the answer reached --max-new-tokens"
            )
        answer = parts(pieces)
        # An answer that is stopped before the first word leaves no trace.
        if answer and not self.is_base:
            self.messages = [*messages, {"role": "assistant", "content": answer}]
