"""Talk to a model: in the terminal, for one answer, or through a pipe.

python -m scripts.chat_cli
python -m scripts.chat_cli -i sft -g d8 -p "What is 12 + 34?"
"""

import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.paths import base_dir
from nanochat.stages import MODELS

HISTORY = "chat_cli/history.txt"  # of lines that were typed, below the base folder


@dataclass(frozen=True)
class Config:
    """Talk to a model; /help names the commands. Answers go to stdout, and all else to stderr if nobody sits there."""

    source: str = option(
        "", f"stage whose model to take: {', '.join(MODELS)}; empty: the furthest there is", group="model", short="-i"
    )
    tag: str = option("", "run whose model to take, empty: the newest", group="model", short="-g")
    step: Count = option(-1, "its checkpoint, -1: the newest", group="model", least=0, short="-s")
    prompt: str | None = option(
        None,
        "one message, whose answer is all that comes; -: read it from stdin",
        group="talk",
        unit="TEXT",
        short="-p",
    )
    temperature: float = option(0.6, "0: always the likeliest token", group="answers", least=0, short="-t")
    top_k: Count = option(50, "likeliest tokens to draw from, 0: all", group="answers", least=0, short="-k")
    top_p: float = option(1.0, "probability that the likeliest tokens to draw from have together", group="answers")
    max_new_tokens: Count = option(512, "of an answer", group="answers", least=1, unit="TOKENS")
    seed: Count = option(0, "of the first answer, each has the next one", group="answers", least=0)
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device")
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device")

    def __post_init__(self):
        if self.source not in ("", *MODELS):
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p={self.top_p} has to be above 0 and at most 1")
        if self.prompt == "":
            raise ValueError("--prompt is empty: say something, or leave it out to talk")


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.restore import trained
    from nanochat.runtime import setup
    from nanochat.serve.talk import Talk
    from nanochat.serve.terminal import piped, typed

    trained(config.source, config.tag)  # said before anything is set up
    out, attended = sys.stdout, config.prompt is None and sys.stdin.isatty() and sys.stdout.isatty()
    for stream in (sys.stdin, out):  # bytes and characters that a terminal's encoding does not have
        stream.reconfigure(errors="replace")
    with ExitStack() as stack:
        if not attended:
            stack.enter_context(redirect_stdout(sys.stderr))
        runtime = stack.enter_context(setup(config.device_type, config.dtype))
        if runtime.world_size > 1:
            raise ValueError("a talk is of one process: start it without torchrun")
        talk = Talk(config, runtime, out, attended)
        if config.prompt is not None:
            talk.ask(sys.stdin.read() if config.prompt == "-" else config.prompt)
        elif attended:
            print0("/help names the commands, Ctrl-D leaves")
            converse(talk, typed(base_dir() / HISTORY))
        else:
            all(talk.hear(message) for message in piped(sys.stdin))  # until one of them ends it


def converse(talk, messages) -> None:
    """What cannot be is told, and does not end it."""
    for message in messages:
        try:
            if not talk.hear(message):
                return
        except (ValueError, OSError) as error:
            talk.note(str(error))
        except KeyboardInterrupt:
            talk.note("interrupted")


if __name__ == "__main__":
    run(main, Config)
