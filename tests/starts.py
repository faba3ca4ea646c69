"""The start of a small base training, without a run."""

from pathlib import Path
from types import SimpleNamespace

from loop_parts import ALONE

from nanochat.scaling import plan_run
from nanochat.start import Start, start_new
from scripts.base_train import Config

TINY = Config(
    depth=2, aspect_ratio=32, head_dim=32, max_seq_len=32, total_batch_size=256, num_iterations=4, compile=False
)


def start_of(config: Config) -> Start[Config]:
    tokenizer = SimpleNamespace(content_hash="")
    return start_new(Path("tiny"), config, plan_run(config, 32768, 32759), tokenizer, None, ALONE)
