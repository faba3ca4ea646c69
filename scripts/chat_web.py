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
    host: str = option("127.0.0.1", "address to listen on; all but loopback need NANOCHAT_API_KEY", group="network")
    port: int = option(8000, "port to listen on, 0: any free port", group="network", least=0)
    allow_host: str = option("", "more host names that clients use, separated by blanks", group="network", unit="NAMES")
    slots: Count = option(0, "samples in one batch of an engine, 0: automatic", group="engine", least=0)
    queue: Count = option(256, "samples waiting for a slot; more get status 429", group="engine", least=0)
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device")
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device")

    def __post_init__(self):
        if self.source not in MODELS:
            raise ValueError(f"--source={self.source} is not one of {', '.join(MODELS)}")


def main(config: Config) -> None:
    # Imported here: slow imports must not delay --help.
    from nanochat.runtime import setup
    from nanochat.serve.app import Service, is_loopback, listen, open_engines, serve
    from nanochat.serve.requests import ServedModel
    from nanochat.serve.worker import Pool

    # In the environment, because all users of a machine see command lines.
    key = os.environ.get("NANOCHAT_API_KEY", "").strip()  # a mounted secret ends with a newline
    if not key and not is_loopback(config.host):
        raise ValueError(f"--host={config.host} is open to other machines: set NANOCHAT_API_KEY")
    bound = listen(config.host, config.port)  # before the model is loaded: a mistake shows at once
    with setup(config.device_type, config.dtype) as runtime:
        step = None if config.step < 0 else config.step  # None: the newest
        workers = open_engines(config.source, config.tag, step, runtime, config.slots)
        engine = workers[0].engine
        served = ServedModel(f"nanochat-{config.tag}-{config.source}", engine.tokenizer, engine.config.max_seq_len)
        service = Service(served, Pool(workers, config.queue))
        serve(bound, service, config.host, key, config.allow_host.split())


if __name__ == "__main__":
    run(main, Config)
