"""Bits per byte of a model on training text and on validation text, and samples of the model.

python -m scripts.base_loss --tag=d8
python -m scripts.base_loss --source=sft --tag=d8 --data=my-text --splits=all     a fine-tuned model, on another text
"""

from itertools import chain
from math import ceil

from nanochat import registry
from nanochat.config import Count, check_names, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.settings import CorpusSettings, DeviceSettings, LogSettings, ModelChoice
from nanochat.stages import Source, loss_stage

SPLITS = {"train": ("train",), "val": ("val",), "all": ("val", "train")}  # name -> parts of the text, in order


@options("data")
class Config(CorpusSettings, DeviceSettings, ModelChoice, LogSettings):
    """Evaluate the loss of a model on training and validation text, and print samples."""

    source: Source = option("base", "training stage of the model", short="-i", off="base")
    data = option("", "folder of text, corpus or mix (default: that of the base model)")
    splits: str = option(
        "train,val",
        "parts of the text, some of train, val, all (both, val first), separated by commas",
        off="train,val",
    )
    eval_bytes: Count = option(4_000_000, "bytes of text from each split", least=1)
    max_seq_len: Count = option(0, "tokens in a row (0: as many as the model's context has)", off=0)
    stride: Count = option(0, "also evaluate overlapping rows that start every N tokens (0: no)", off=0)
    device_batch_size: Count = option(8, "rows per batch on one device", least=1, in_card=False)
    out_tag: str = option("", "name of the evaluation's folder (default: the run's)", in_card=False)

    def __post_init__(self) -> None:
        check_names("the split", self.chosen, SPLITS)

    @property
    def chosen(self) -> list[str]:
        return self.splits.split(",")


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus
    from nanochat.dataloader import corpus_of
    from nanochat.evals.bpb import read_text, text_bpb, write_samples
    from nanochat.models import base_record, load_chosen
    from nanochat.runtime import setup

    outcome = Outcome.begin(loss_stage(config.source), config.evaluation_tag(config.out_tag), config)
    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, checkpoint = load_chosen(config, runtime)
        if config.data:
            corpus = open_corpus(config.data, config.num_shards)
        else:
            manifest, tag = base_record(checkpoint.manifest, config.tag)
            corpus = corpus_of(manifest, config.num_shards, tag)
        length = config.max_seq_len or model.config.max_seq_len
        if length > model.config.max_seq_len:
            raise UserError(f"--max-seq-len={length} is more than the context of {model.config.max_seq_len:,} tokens")
        samples = write_samples(model, tokenizer) if runtime.rank == 0 else []
        texts = {}
        for split in config.chosen:
            batches = chain.from_iterable(map(corpus.batches, SPLITS[split]))
            text = texts[split] = read_text(batches, tokenizer, config.eval_bytes)
            if text.bytes < config.eval_bytes:
                print0(f"{split}: {text.bytes:,} bytes are all that {corpus.name} has")

        # The overlapping rows first: a stride that is too long is refused before the work.
        strides = [config.stride, 0] if config.stride else [0]
        for split, text in texts.items():
            for stride in strides:
                # Nothing is compiled here, so a short text need not fill a batch.
                rows = min(config.device_batch_size, ceil(len(text.ids) / (length * runtime.world_size)))
                found = text_bpb(model, text, length, rows, runtime, stride)
                name = f"{split} bpb (stride {stride})" if stride else f"{split} bpb"
                outcome.metrics[name] = found.metric()
        if model.config.kind in registry.LOSS_TABLES.modules:
            more = registry.load(registry.LOSS_TABLES, model.config.kind)
            outcome.tables.append(more(model, texts[config.chosen[-1]], length, config.device_batch_size, runtime))
        if "all" in texts:
            outcome.metrics["Bytes"] = texts["all"].bytes
        outcome.metrics |= {"Step": checkpoint.step, "Data": corpus.name}
        outcome.tables.append(table_of("Samples", "Prompt | Continuation", samples))
        if runtime.rank == 0:
            outcome.write_evaluation("loss", checkpoint.step)


if __name__ == "__main__":
    run_script(main)
