"""Serve a model over HTTP: a page to chat on, and OpenAI's interface.

python -m scripts.chat_web --source=sft --tag=d8
NANOCHAT_API_KEY=... python -m scripts.chat_web -i rl -g d20 --host=0.0.0.0
"""

import os
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.stages import MODELS


@dataclass(frozen=True)
class Config:
    """Serve a model over HTTP. Only this machine can reach the server, unless --host says otherwise."""

    source: str = option("sft", f"stage of the model: {', '.join(MODELS)}", group="model", short="-i")
    tag: str = option("d12", "run of the model", group="model", short="-g")
    step: Count = option(-1, "checkpoint of the model, -1: the newest", group="model", least=-1, short="-s")
    host: str = option("127.0.0.1", "address to listen on; other addresses than loopback need a key", group="network")
    port: int = option(8000, "port to listen on, 0: any free port", group="network", least=0)
    api_key: str = option("", "key for clients; default: NANOCHAT_API_KEY, hidden from other users", group="network")
    allow_host: str = option("", "more names of the server", group="network", unit="NAMES")
    allow_origin: str = option(
        "", "sites whose pages may use the server, such as https://example.com", group="network", unit="ORIGINS"
    )
    slots: Count = option(0, "samples in one batch of an engine, 0: automatic", group="engine", least=0)
    queue: Count = option(256, "samples waiting for a slot; more get status 429", group="engine", least=0)
    engines: Count = option(0, "copies of the model, 0: one on each GPU, or one on the CPU", group="engine", least=0)
    drain: float = option(30.0, "time to finish open requests at a shutdown", group="engine", least=0, unit="SECONDS")
    max_tokens: Count = option(0, "most tokens of an answer, 0: as many as the context holds", group="limits", least=0)
    max_samples: Count = option(16, "most samples of a prompt (n)", group="limits", least=1)
    max_messages: Count = option(200, "most messages of a conversation", group="limits", least=1)
    max_characters: Count = option(200_000, "most characters of a request", group="limits", least=1)
    max_body: Count = option(1 << 20, "most bytes of a request", group="limits", least=1000, unit="BYTES")
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device")
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device")

    def __post_init__(self):
        if self.source not in MODELS:
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")
        if self.port > 65_535:
            raise ValueError(f"--port={self.port} is too large: ports end at 65,535")


def main(config: Config) -> None:
    # Imported here: slow imports must not delay --help.
    from nanochat.runtime import setup
    from nanochat.serve.app import Access, Service, is_loopback, listen, open_engines, serve
    from nanochat.serve.requests import RequestLimits, ServedModel
    from nanochat.serve.worker import Pool

    # The environment is safer: all users of a machine see command lines.
    key = config.api_key or os.environ.get("NANOCHAT_API_KEY", "")
    key = key.strip()  # a mounted secret ends with a newline
    if not key and not is_loopback(config.host):
        raise ValueError(f"--host={config.host} is open to other machines: set NANOCHAT_API_KEY or --api-key")
    bound = listen(config.host, config.port)  # before the model is loaded: a mistake shows at once
    with setup(config.device_type, config.dtype) as runtime:
        step = None if config.step < 0 else config.step  # None: the newest
        workers, checkpoint = open_engines(config.source, config.tag, step, runtime, config.engines, config.slots)
        engine = workers[0].engine
        served = ServedModel(
            name=f"nanochat-{config.tag}-{config.source}",
            tokenizer=engine.tokenizer,
            context=engine.config.max_seq_len,
            limits=RequestLimits(
                body_bytes=config.max_body,
                messages=config.max_messages,
                characters=config.max_characters,
                tokens=config.max_tokens,
                samples=config.max_samples,
            ),
            # OpenAI's clients show the age of a model.
            created=int(checkpoint.path.stat().st_mtime),
        )
        service = Service(served, Pool(workers, config.queue))
        access = Access(
            host=config.host,
            key=key,
            hosts=tuple(config.allow_host.split()),
            origins=tuple(config.allow_origin.split()),
        )
        serve(bound, service, access, config.drain)


if __name__ == "__main__":
    run(main, Config)
