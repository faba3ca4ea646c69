"""The chat in a terminal or a pipe: messages in one or several lines, streamed answers, and commands."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from nanochat.chat import Piece, Reply, fitted_prompt, parts
from nanochat.checkpoint import load_model, trained
from nanochat.engine import Engine, Request
from nanochat.log import is_terminal, print_line
from nanochat.paths import base_dir
from nanochat.runtime import Runtime
from nanochat.stages import MODELS

SAVED = "chat_cli/conversations.jsonl"  # below the base folder
HISTORY_LINES = 1000
CODE_FENCE = "```"
BLOCK = '"""'
PROMPT = "> "
CONTINUED = ". "  # prompt for further lines
CALL_COLOR = "\x1b[36m"  # the calculator's turns
NOTE_COLOR = "\x1b[2m"  # text from us, not from the model
PLAIN = "\x1b[0m"


# ---- messages in ----


def piped_messages(stream: TextIO) -> Iterator[str]:
    """Yield messages from a stream until the end."""

    def read_line(prompt: str) -> str:
        line = stream.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    try:
        while True:
            message = read_message(read_line)
            if message.strip():
                yield message
    except EOFError:
        return


def typed_messages(history: Path) -> Iterator[str]:
    """Yield typed messages until Ctrl-D, or Ctrl-C on an empty line. `history` keeps the lines."""
    import readline  # not at the top: pipes work without readline

    history.parent.mkdir(parents=True, exist_ok=True)  # at the first chat
    history.touch()
    readline.set_history_length(HISTORY_LINES)
    readline.read_history_file(history)
    readline.write_history_file(history)  # without the lines beyond the limit
    history.chmod(0o600)  # readable by the owner only
    lines = 0  # typed so far, in one message

    def read_line(prompt: str) -> str:
        nonlocal lines
        line = input(prompt)
        lines += 1
        # After each line: a killed chat leaves a history, too.
        readline.append_history_file(1, history)
        return line

    while True:
        lines = 0
        try:
            message = read_message(read_line)
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            if not lines and not readline.get_line_buffer():
                return
            continue  # the message is given up
        if message.strip():
            yield message


def read_message(read_line: Callable[[str], str]) -> str:
    """Return a message. A backslash at the end of a line, or a block, makes several lines; EOF ends a block."""
    text = read_line(PROMPT)
    # Commands have one line, and no blocks.
    if text.startswith("/"):
        return text
    in_block = text.startswith(BLOCK)
    text = text.removeprefix(BLOCK)
    try:
        while True:
            if in_block and text.rstrip().endswith(BLOCK):
                return text.rstrip().removesuffix(BLOCK).strip("\n")
            # An odd number of fences: a block of code is open.
            if in_block or text.count(CODE_FENCE) % 2:
                text += "\n" + read_line(CONTINUED)
            elif text.endswith("\\"):
                text = text[:-1] + "\n" + read_line(CONTINUED)
            else:
                return text
    except EOFError:
        return text  # the block has no end


@contextmanager
def catch_interrupts(enabled: bool) -> Iterator[list[int]]:
    """Collect Ctrl-C in a list and raise nothing: an exception could cut an engine's step in the middle."""
    caught: list[int] = []
    if not enabled:
        yield caught
        return
    # The handler runs in the main thread, then the step goes on.
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)


# ---- answers out ----


# Control characters would be obeyed by a terminal: pictures replace them, from ␀ on, and �.
CONTROL_CODES = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
CONTROL_PICTURES = {code: 0x2400 + code if code < 32 else 0xFFFD for code in CONTROL_CODES}


def colored(color: str, text: str, stream: TextIO) -> str:
    """Return text in a color, or unchanged text if the stream shows no colors."""
    return f"{color}{text}{PLAIN}" if is_terminal(stream) and not os.environ.get("NO_COLOR") else text


class AnswerPrinter:
    """Prints an answer piece by piece; the calculator's turns are printed on a terminal only."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._in_call = False
        self._last = ""  # character

    def add(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            # An empty text only marks the end, and the calculator's answer may follow.
            if kind == "text" and text:
                self._end_call()
                self._write(text)
            elif kind != "text" and self.is_terminal:
                self._write_call(kind, text)
        self.stream.flush()

    def close(self) -> None:
        """End the last line."""
        self._end_call()
        if self._last != "\n":
            self._write("\n")
        self.stream.flush()

    def _write_call(self, kind: str, text: str) -> None:
        """Write a call as [12+34 = 46]; a piece without text begins a part."""
        if not text and kind == "python":
            self._end_call()
            text = "["
        elif not text:
            text = " = "
        self._in_call = True
        self._write(text, CALL_COLOR)

    def _end_call(self) -> None:
        if self._in_call:
            self._in_call = False
            self._write("]", CALL_COLOR)

    def _write(self, text: str, color: str = "") -> None:
        self._last = text[-1:] or self._last  # before control characters are replaced
        if self.is_terminal:
            text = text.translate(CONTROL_PICTURES)
        self.stream.write(colored(color, text, self.stream) if color else text)


# ---- the conversation ----


class ChatSettings(Protocol):
    """Settings of a chat; the config in scripts.chat_cli has them all."""

    source: str
    tag: str
    step: int
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class TerminalChat:
    """A conversation with a model. out: the stream for answers. interactive: Ctrl-C ends an answer, not the process.

    A base model does not know conversations: each message is the beginning of a text, and the answer continues it.
    """

    def __init__(self, config: ChatSettings, runtime: Runtime, out: TextIO, interactive: bool):
        self.config = config
        self.runtime = runtime
        self.out = out
        self.interactive = interactive
        self.source = ""  # the model's stage: base, mid, sft or rl
        self.system = ""  # message, empty: none
        self.messages: list[dict] = []
        self.answers = 0  # so far; the number sets the seed
        self.left_out = 0  # messages beyond the context
        self.load(config.source, config.tag, config.step)

    def load(self, source: str, tag: str, step: int) -> None:
        """Change the model and keep the conversation, unless one of the two is a base model. step -1: the newest."""
        source, tag = trained(source, tag)[-1]
        model, tokenizer, checkpoint = load_model(MODELS[source], tag, None if step < 0 else step, self.runtime)
        # The texts of a base model are no conversation.
        if "base" in (self.source, source):
            self.messages = []
        self.engine = Engine(model, tokenizer, slots=1)  # one conversation
        self.tokenizer = tokenizer
        self.source = source
        self.tag = tag
        self.step = checkpoint.step

    def handle(self, message: str) -> bool:
        """Run a command, or answer a message. Return False to leave."""
        name, _, rest = message.partition(" ")
        if not name.startswith("/"):
            self.ask(message)
        elif name in COMMANDS:
            _, command = COMMANDS[name]
            command(self, rest.strip())
        else:
            raise ValueError(f"there is no command {name}: /help lists all; put a blank before it to send a message")
        return name != "/quit"

    def ask(self, text: str) -> None:
        before = [] if self.source == "base" else self.messages
        content = text.encode(errors="replace").decode()  # no halves of surrogate pairs
        self.answer([*before, {"role": "user", "content": content}])

    def answer(self, messages: list[dict]) -> None:
        """Answer messages. Messages and answer become the conversation."""
        request = self._request(messages)
        reply = Reply(self.tokenizer)
        pieces: list[Piece] = []
        reason = "stop"
        self.answers += 1
        with (
            catch_interrupts(self.interactive) as interrupts,
            closing(AnswerPrinter(self.out)) as printer,
            closing(self.engine.stream([request])) as events,
        ):
            for event in events:
                new = reply.close() if event.token is None else reply.add(event.token)
                pieces += new
                printer.add(new)
                reason = event.reason or reason
                if interrupts:
                    reason = "interrupted"
                    break  # closing the events frees the engine's slot
        # Text alone is a plain string, as in other data.
        content = parts(pieces)
        if all(part["type"] == "text" for part in content):
            content = "".join(part["text"] for part in content)
        # Nothing changes if an answer is stopped before the first word.
        if content or reason != "interrupted":
            self.messages = [*messages, {"role": "assistant", "content": content}]
        if reason == "length":
            self.note("the answer reached --max-new-tokens")
        elif reason == "interrupted":
            self.note("interrupted")

    def _request(self, messages: list[dict]) -> Request:
        """Return the prompt with the sampling settings. Prints a note if messages do not fit into the context."""
        config = self.config
        context = self.engine.config.max_seq_len
        if self.source == "base":
            bos = self.tokenizer.special_tokens["<|bos|>"]
            # The prompt leaves room for the answer, but gets at least half the context.
            room = max(context - config.max_new_tokens, context // 2) - 1  # without <|bos|>
            text = self.tokenizer.encode(messages[-1]["content"])
            left_out = int(len(text) > room)
            tokens = [bos, *text[-room:]]
            stop = frozenset([bos])
        else:
            conversation = self.conversation(messages)
            tokens, left_out = fitted_prompt(conversation, self.tokenizer, context, config.max_new_tokens)
            stop = None
        # An odd number includes the start of the last message.
        if left_out > self.left_out:
            part = f"the {left_out} oldest messages are" if left_out % 2 == 0 else "the start of the last message is"
            self.note(f"the conversation is too long for {context:,} tokens: {part} left out")
        self.left_out = left_out
        return Request(
            tokens,
            config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            seed=config.seed + self.answers,
            stop=stop,
        )

    def conversation(self, messages: list[dict]) -> dict:
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        return {"messages": messages}

    def note(self, text: str) -> None:
        """Print our own text to stderr."""
        print_line(colored(NOTE_COLOR, text, sys.stderr), file=sys.stderr)

    def run(self, messages: Iterator[str]) -> None:
        """Handle messages until /quit. An error is printed and does not end the chat."""
        for message in messages:
            try:
                if not self.handle(message):
                    return
            except (ValueError, OSError) as error:
                self.note(str(error))
            except KeyboardInterrupt:
                self.note("interrupted")


# ---- commands: functions with the chat and the text after the command ----


def _help(chat: TerminalChat, rest: str) -> None:
    lines = [f"{name:8} {text}" for name, (text, _) in COMMANDS.items()]
    lines.append('For several lines, end a line with \\, or put """ or ``` before and after the text.')
    chat.note("\n".join(lines))


def _clear(chat: TerminalChat, rest: str) -> None:
    chat.messages = []
    chat.left_out = 0
    chat.note("new conversation (system message kept)" if chat.system else "new conversation")


def _system(chat: TerminalChat, rest: str) -> None:
    chat.system = rest
    chat.note("system message set" if rest else "system message removed")


def _undo(chat: TerminalChat, rest: str) -> None:
    chat.messages = chat.messages[:-2]  # question and answer
    chat.note(f"questions left: {len(chat.messages) // 2}")


def _again(chat: TerminalChat, rest: str) -> None:
    if not chat.messages:
        raise ValueError("there is no question to answer again")
    chat.answer(chat.messages[:-1])  # without the last answer


def _save(chat: TerminalChat, rest: str) -> None:
    if not chat.messages or chat.source == "base":
        raise ValueError("there is no conversation to save")
    path = Path(rest).expanduser() if rest else base_dir() / SAVED
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(chat.conversation(chat.messages), ensure_ascii=False) + "\n")
    chat.note(f"conversation added to {path}")


def _model(chat: TerminalChat, rest: str) -> None:
    words = rest.split()  # source, tag, step: as many as given
    if len(words) > 3 or (len(words) == 3 and not words[2].isdecimal()):
        raise ValueError(f"/model {rest}: expected a source, a tag and a step's number")
    if words:
        tag = words[1] if len(words) > 1 else chat.tag
        step = int(words[2]) if len(words) > 2 else -1
        chat.load(words[0], tag, step)
    models = ", ".join(f"{source} {tag}" for source, tag in trained())
    chat.note(f"model: {chat.source} {chat.tag}, step {chat.step:,}; trained models: {models}")


def _quit(chat: TerminalChat, rest: str) -> None:
    pass


COMMANDS: dict[str, tuple[str, Callable[[TerminalChat, str], None]]] = {
    "/help": ("list the commands", _help),
    "/clear": ("start a new conversation", _clear),
    "/undo": ("remove the last question and answer", _undo),
    "/again": ("answer the last question again", _again),
    "/system": ("TEXT: set the system message; no TEXT: no system message", _system),
    "/save": ("[FILE]: append the conversation to a file for --mixture=json:FILE", _save),
    "/model": ("[SOURCE [TAG [STEP]]]: change the model, or show the trained models", _model),
    "/quit": ("leave, like Ctrl-D", _quit),
}
