"""A server in a process of its own, with a small model: for bench.attacks, and for tests of what clients see."""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.common import ROOT

TEXT = ["What is 12 + 34? It is 46, said the quick brown fox. naïve café — 빠른 갈색 여우 🦊🦊 ", "The dog sleeps. "]
CONTEXT = 192


def write_model(base: Path, tag: str = "mine", endless: bool = False, text=TEXT, vocabulary=300, **fields):
    """A model of random weights that are not small, and its tokenizer; the twin of what will serve it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from models import leave_model  # these import torch: the help of benchmarks does without

    from nanochat.engine import Engine
    from nanochat.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(text, vocabulary)
    more = {"config": {"chat_temperature": 0.25}, "suggestions": {"questions": ["Who is there?"]}}
    about = {"tokenizer_tag": tag, "preset": "reference", "endless": endless, "more": more}
    sizes = {"depth": 2, "max_seq_len": CONTEXT} | fields
    model = leave_model(base, "chat_sft", tag, tokenizer, **about, **sizes)
    engine = Engine(model.requires_grad_(False), tokenizer, slots=4)
    engine.plain = model
    return engine


class RunningServer:
    """A server that listens. url: without a slash at the end. address: host and port, for a socket."""

    def __init__(self, process: subprocess.Popen, url: str, log: list[str]) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.address = "127.0.0.1", httpx.URL(url).port
        self.http = httpx.Client(base_url=url, timeout=60)

    def running(self):
        """Return the number of samples in slots or waiting for one."""
        return self.http.get("/health").json()["samples"]

    def becomes_idle(self):
        """Return True once no sample runs or waits, five times in a row; False after a minute."""
        quiet = 0
        end = time.monotonic() + 60
        while quiet < 5 and time.monotonic() < end:
            quiet = 0 if self.running() else quiet + 1
            time.sleep(0.02)
        return quiet == 5


@contextmanager
def serving(base: Path, *words: str, tag: str = "mine", files: int = 0, **variables: str):
    """`python -m scripts.chat_web` with a model like that of `write_model`, from its greeting to its end."""
    ours = ("NANOCHAT_", "PYTHONPATH", "RANK")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "scripts.chat_web", "--source=sft", f"--tag={tag}", "--port=0"]
    command += ["--device-type=cpu", "--dtype=fp32", *words]
    if files:
        command = ["bash", "-c", f'ulimit -n {files} && exec "$@"', "bash", *command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=env, **streams)
    log = []
    try:
        for line in process.stdout:
            log.append(line)
            if found := re.match(r"server: (http://\S+)/ ", line):
                threading.Thread(target=lambda: log.extend(process.stdout), daemon=True).start()
                yield RunningServer(process, found[1], log)
                break
        else:
            raise AssertionError("".join(log))
    finally:
        process.kill()
        process.wait()
