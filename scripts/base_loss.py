"""Bits per byte of the base model on text it was trained on and on text it was not, and what it writes.

python -m scripts.base_loss --tag=d8
"""

import itertools
import math
from dataclasses import asdict, dataclass

from nanochat.config import Count, option, run
from nanochat.log import MetricLog, print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir


@dataclass(frozen=True)
class Config:
    """Evaluate the loss of a base model on training and validation text, and let it write."""

    tag: str = option("d12", "run whose model to take", group="model", in_card=False)
    step: Count = option(-1, "its checkpoint, -1: the newest", group="model", least=-1, in_card=False)
    data: str = option("", "folder of text, corpus by name, or a mix; empty: the run's", group="text")
    num_shards: Count = option(0, "of a named corpus, 0: its default", group="text", least=0, in_card=False)
    skip_bad: bool = option(False, "leave out damaged files and rows", group="text", in_card=False)
    eval_bytes: Count = option(4_000_000, "of each kind of text", group="text", least=1, unit="BYTES")
    stride: Count = option(0, "take rows that overlap, too: so far apart", group="text", least=0, unit="TOKENS")
    device_batch_size: Count = option(8, "rows at once on a device", group="device", least=1, in_card=False)
    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device", in_card=False)
    dtype: str = option("auto", "auto, bf16, fp16 or fp32", group="device", in_card=False)
    sample_tokens: Count = option(
        32, "that it writes behind each prompt", group="samples", least=0, unit="TOKENS", in_card=False
    )
    run: str = option("dummy", "name for W&B; dummy: do without", group="run", in_card=False)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.data.corpus import open_corpus
    from nanochat.evals.bpb import bits_per_byte, read_text
    from nanochat.evals.samples import write_samples
    from nanochat.restore import load_model
    from nanochat.runtime import setup

    outcome = Outcome.begin("base_loss", config.tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        step = None if config.step < 0 else config.step
        model, tokenizer, checkpoint = load_model("base_train", config.tag, step, runtime)
        data = config.data or checkpoint.manifest["config"]["data"]
        corpus = open_corpus(data, config.num_shards, skip_bad=config.skip_bad)
        writes = config.sample_tokens and runtime.rank == 0
        rows = write_samples(model, tokenizer, config.sample_tokens) if writes else []
        texts = {split: read_text(corpus.batches(split), tokenizer, config.eval_bytes) for split in ("train", "val")}
        tokens, length = sum(len(text.ids) for text in texts.values()), model.config.max_seq_len
        flops = model.flops_per_token() // 3 * tokens * (1 + length / (config.stride or math.inf))
        compiling = runtime.device.type == "cpu" and runtime.compiling_pays(flops)
        if compiling:
            model.compile_parts()
        print0(f"base_loss: {tokens:,} tokens, {flops:.1e} FLOPs: {'compiled' if compiling else 'not worth compiling'}")
        # The overlapping rows first: what cannot be is told at once.
        for (split, text), stride in itertools.product(texts.items(), dict.fromkeys((config.stride, 0))):
            found = bits_per_byte(model, text, length, config.device_batch_size, runtime, stride)
            name = f"{split} bpb (stride {stride})" if stride else f"{split} bpb"
            outcome.metrics[name] = {"value": found.value, "stderr": found.stderr, "format": ".4f"}
            print0(f"base_loss: {name} {found.value:.4f} ± {found.stderr:.4f}, {found.bytes:,} bytes")
        table = {"title": "Samples", "columns": [["Prompt", ""], ["Continuation", ""]], "rows": rows}
        outcome.metrics |= {"Step": checkpoint.step, "Data": corpus.describe()["name"]}
        outcome.tables.append(table)
        if runtime.rank == 0:
            with MetricLog(stage_dir("base_loss", config.tag), config.run, asdict(config)) as log:
                log.write(
                    "loss",
                    checkpoint.step,
                    **{name: value["value"] for name, value in outcome.metrics.items() if "bpb" in name},
                )
            outcome.write()


if __name__ == "__main__":
    run(main, Config)
