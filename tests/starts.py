"""The start of a small base training, without a run."""

from types import SimpleNamespace

from loop_parts import ALONE

from nanochat.paths import stage_dir
from nanochat.scaling import plan_run
from nanochat.start import Start, start_new
from scripts.base_train import Config

TINY = Config(
    depth=2, aspect_ratio=32, head_dim=32, max_seq_len=32, total_batch_size=256, num_iterations=4, compile=False
)


def start_of(config: Config) -> Start[Config]:
    tokenizer = SimpleNamespace(content_hash="")
    folder = stage_dir("base_train", "tiny")
    return start_new(folder, config, plan_run(config, 32768, 32759), tokenizer, ALONE)
