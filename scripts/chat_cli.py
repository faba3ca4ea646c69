"""Chat with a model: in the terminal, with one prompt, or through a pipe.

python -m scripts.chat_cli
python -m scripts.chat_cli -i sft -g d8 -p "What is 12 + 34?"
"""

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.paths import base_dir
from nanochat.settings import DeviceSettings, ModelChoice, SamplingSettings
from nanochat.stages import Source

HISTORY = "chat_cli/history.txt"  # typed lines, below the base folder


@options("chat")
class Config(SamplingSettings, DeviceSettings, ModelChoice):
    """Chat with a model. In a pipe, stdout has answers only and stderr everything else."""

    # "" and None: found when the models are known.
    source: Literal["", Source] = option(  # ty: ignore[incompatible-attribute-override]  # the group has no ""
        "", "stage of the model (default: the latest stage that has a model)"
    )
    tag = option("", "run of the model (default: the newest)")
    prompt: str | None = option(None, "answer one message and exit (-: read it from stdin)", short="-p")
    temperature: float | None = option(  # ty: ignore[incompatible-attribute-override]  # the group has no None
        None, "sampling temperature, 0: greedy (default: the model's own)"
    )
    top_k: Count | None = option(  # ty: ignore[incompatible-attribute-override]  # the group has no None
        None, "sample from the k most likely tokens, 0: all (default: a public model's own, or 50)", short="-k"
    )
    top_p: float | None = option(  # ty: ignore[incompatible-attribute-override]  # the group has no None
        None,
        "nucleus sampling: the smallest set of tokens whose probabilities sum to top_p (default: a public model's own, "
        "or 1)",
        below=float("inf"),  # 1 is one too, see below
    )

    def __post_init__(self) -> None:
        if self.prompt == "":
            raise UserError("--prompt is empty: give a message, or leave the option out to chat")
        if self.top_p is not None and not self.top_p <= 1:
            raise UserError(f"--top-p has to be at most 1, not {self.top_p}")


def main(config: Config) -> None:
    from nanochat.chat import chat_temperature, chat_top_k, chat_top_p, suggestions
    from nanochat.engine import Engine, Request
    from nanochat.models import load_chosen, trained
    from nanochat.runtime import setup
    from nanochat.serve.cli import COMMANDS, TerminalChat, piped_messages, typed_messages

    source, tag = trained(config.source, config.tag)[-1]  # a missing model is an error before anything is set up
    out = sys.stdout
    interactive = config.prompt is None and sys.stdin.isatty() and out.isatty()
    for stream in (sys.stdin, out):
        # Bytes and characters outside the encoding.
        stream.reconfigure(errors="replace")  # ty: ignore[missing-union-attribute]  # Python makes TextIOWrappers
    # Messages of the program do not mix with the answers.
    messages = nullcontext() if interactive else redirect_stdout(sys.stderr)
    with messages, setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, checkpoint = load_chosen(replace(config, source=source, tag=tag), runtime)
        is_base = source == "base"
        own_k, own_p = chat_top_k(checkpoint.manifest), chat_top_p(checkpoint.manifest)
        top_k = own_k if config.top_k is None else config.top_k
        top_p = own_p if config.top_p is None else config.top_p
        settings = Request(
            tokens=(),  # of each prompt
            max_new_tokens=config.max_new_tokens,
            temperature=chat_temperature(checkpoint.manifest) if config.temperature is None else config.temperature,
            top_k=SamplingSettings.top_k if top_k is None else top_k,
            top_p=SamplingSettings.top_p if top_p is None else top_p,
            seed=config.seed,
            stop=frozenset(tokenizer.text_ends) if is_base else None,
        )
        chat = TerminalChat(Engine(model, tokenizer, slots=1), is_base, settings, out, interactive)
        if config.prompt is not None:
            chat.ask(sys.stdin.read() if config.prompt == "-" else config.prompt)
        elif interactive:
            print0(COMMANDS)
            print0('for a message of several lines, end a line with \\, or put """ before and after the message')
            print0("begin, for example:" if is_base else "ask, for example:")
            for text in suggestions(checkpoint.manifest, is_base)[:3]:
                print0(f"  {text}")
            chat.converse(typed_messages(base_dir() / HISTORY))
        else:
            chat.converse(piped_messages(sys.stdin))


if __name__ == "__main__":
    run_script(main)
