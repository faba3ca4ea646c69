"""Serve a model over HTTP: a page to chat on, and OpenAI's interface.

python -m scripts.chat_web --source=sft --tag=d8
NANOCHAT_API_KEY=... python -m scripts.chat_web -i rl -g d20 --host=0.0.0.0
"""

import os

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.settings import DeviceSettings, ModelChoice


@options("network")
class Config(DeviceSettings, ModelChoice):
    """Serve a model over HTTP. Only this machine can reach the server, unless --host says otherwise."""

    host: str = option("127.0.0.1", "address to listen on; any address but loopback needs NANOCHAT_API_KEY")
    port: int = option(8000, "port to listen on (0: any free port)")
    allow_host: str = option("", "more host names that clients use, separated by spaces")
    allow_origin: str = option("", "origins of web pages that may call it, separated by spaces")
    slots: Count = option(0, "samples generated in parallel (0: chosen for the device)", group="engine")
    queue: Count = option(256, "samples waiting for a slot; more get status 429", group="engine")


def main(config: Config) -> None:
    from nanochat.runtime import setup
    from nanochat.serve.app import LOOPBACK, Service, application, in_url, listen, open_engines, serve

    # In the environment, because all users of a machine see command lines.
    key = os.environ.get("NANOCHAT_API_KEY", "").strip()  # a mounted secret ends with a newline
    if not key and config.host not in LOOPBACK:
        raise UserError(f"--host={config.host} is open to other machines: set NANOCHAT_API_KEY")
    bound = listen(config.host, config.port)  # before the model is loaded: a mistake shows at once
    with setup(config.device_type, config.dtype) as runtime:
        served, workers = open_engines(config, runtime, config.slots)
        app = application(
            Service(served, workers, config.queue),
            config.host,
            key,
            config.allow_host.split(),
            config.allow_origin.split(),
        )
        address = f"{in_url(config.host)}:{bound.getsockname()[1]}"
        print0(f"server: http://{address}/ ({served.name}, engines: {len(workers)})")
        serve(bound, app)


if __name__ == "__main__":
    run_script(main)
