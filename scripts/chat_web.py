"""A model behind a port of this machine: a page to chat on, and an interface that OpenAI's clients speak.

python -m scripts.chat_web --source=sft --tag=d8
NANOCHAT_API_KEY=... python -m scripts.chat_web -i rl -g d20 --host=0.0.0.0
"""

import os
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.stages import MODELS


@dataclass(frozen=True)
class Config:
    """Serve a model. Only this machine can reach it, unless --host says otherwise."""

    source: str = option("sft", f"stage whose model to take: {', '.join(MODELS)}", group="model", short="-i")
    tag: str = option("d12", "run whose model to take", group="model", short="-g")
    step: Count = option(-1, "its checkpoint, -1: the newest", group="model", least=-1, short="-s")
    host: str = option("127.0.0.1", "address to listen at; any but this machine's own needs a key", group="door")
    port: int = option(8000, "port to listen at, 0: any that is free", group="door", least=0)
    api_key: str = option(
        "", "key that clients must send, NANOCHAT_API_KEY if empty, which others cannot see", group="door"
    )
    allow_host: str = option("", "names besides its own that the server answers to", group="door", unit="NAMES")
    allow_origin: str = option("", "sites whose pages may use it, https://example.com", group="door", unit="ORIGINS")
    slots: Count = option(0, "answers that an engine writes at once, 0: as many as pay", group="work", least=0)
    queue: Count = option(256, "answers that may wait besides; more are refused", group="work", least=0)
    engines: Count = option(0, "copies of the model, 0: one a GPU, or one", group="work", least=0)
    drain: float = option(30.0, "time to end what is begun at a shutdown", group="work", least=0, unit="SECONDS")
    max_tokens: Count = option(0, "of an answer, 0: what the context holds", group="limits", least=0)
    max_samples: Count = option(16, "answers to one prompt (n)", group="limits", least=1)
    max_messages: Count = option(200, "of a conversation", group="limits", least=1)
    max_characters: Count = option(200_000, "of a request's texts", group="limits", least=1)
    max_body: Count = option(1 << 20, "of a request", group="limits", least=1000, unit="BYTES")
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device")
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device")

    def __post_init__(self):
        if self.source not in MODELS:
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")
        if self.port > 65_535:
            raise ValueError(f"--port={self.port} is none: they end with 65,535")


def main(config: Config) -> None:
    # Slow imports stay out of --help, and the slowest out of what a mistake needs.
    from nanochat.serve.gate import is_loopback
    from nanochat.serve.port import listen

    key = (config.api_key or os.environ.get("NANOCHAT_API_KEY", "")).strip()  # a mounted secret ends with its line
    if not key and not is_loopback(config.host):
        raise ValueError(f"--host={config.host} lets others in: set NANOCHAT_API_KEY, or --api-key, and they need it")
    bound = listen(config.host, config.port)

    from nanochat.runtime import setup
    from nanochat.serve.app import open_engines, serve
    from nanochat.serve.requests import Limits, Served

    limits = Limits(config.max_body, config.max_messages, config.max_characters, config.max_tokens, config.max_samples)
    with setup(config.device_type, config.dtype) as runtime:
        step = None if config.step < 0 else config.step
        opened = open_engines(config.source, config.tag, step, runtime, config.engines, config.slots)
        workers, tokenizer, checkpoint = opened
        context, created = workers[0].engine.config.max_seq_len, int(checkpoint.path.stat().st_mtime)
        served = Served(f"nanochat-{config.tag}-{config.source}", tokenizer, context, limits, created)
        serve(bound, served, workers, config, key)


if __name__ == "__main__":
    run(main, Config)
