"""Pretrain the base model: predict the next token of a corpus.

python -m scripts.base_train --depth=8
torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --fp8
"""

from dataclasses import dataclass, replace

from nanochat.config import Count, changed, option, run
from nanochat.log import format_value, print0
from nanochat.outcome import pretraining_metrics
from nanochat.paths import stage_dir
from nanochat.settings import CorpusSettings, RecursionSettings, RunSettings, TrainingSettings


@dataclass(frozen=True)
class Config(RecursionSettings, CorpusSettings, TrainingSettings):
    """Pretrain the base model on a corpus. Everything that is not given follows from --depth."""

    tag: str = changed(RunSettings, "tag", "", text="name of the run, and of its folders (default: d and the depth)")
    # Master weights stay fp32; fp8.convert picks the layers.
    fp8: bool = option(False, "compute matrix products in 8 bits, on GPUs that can", group="device")

    # A row of models.CONFIGURATIONS; fields of GPTConfig may follow: --model=reference,backout=false
    model: str = option("reference", "architecture: reference, induction, october-2025 or portable", group="model")
    # With --aspect-ratio and --head-dim, depth gives width and heads: see scaling.plan_run.
    depth: Count = option(12, "layers; other sizes follow from it", group="model", least=1)
    aspect_ratio: Count = option(64, "width per layer of depth", group="model", least=1)
    width: Count = option(0, "width of the model (0: from the depth)", group="model", least=0)
    head_dim: Count = option(128, "width of a head; the model's is a multiple of it", group="model", least=1)
    # Fewer key heads make the KV cache smaller when the model generates.
    kv_heads: Count = option(0, "heads of keys and values (0: as many as query heads)", group="model", least=0)
    window_pattern: str = option(
        "",
        "S and L: layers that see a quarter of the context, or all of it (default: the model's)",
        group="model",
    )
    # HorizonSettings allows one flag in this group, --num-iterations and --target-seconds included.
    target_flops: float = option(-1.0, "FLOPs to spend", group="horizon")
    target_param_data_ratio: float = option(
        -1.0,
        "tokens per parameter (12 if no horizon is given)",
        group="horizon",
    )

    tokenizer_tag: str = option("default", "run that trained the tokenizer", group="data", in_card=False)
    # The order in which rows are trained depends on lanes and seed, not on the number of ranks.
    lanes: Count = option(
        64,
        "streams that the data is dealt into, a multiple of the ranks",
        group="data",
        in_card=False,
    )

    # Counted in bytes, so that runs with other tokenizers read the same text.
    eval_bytes: Count = option(
        -1,
        "bytes of validation text (-1: 20 MB, on a CPU 500 kB)",
        group="evaluation",
        least=1,
    )
    core_metric_every: Count = option(
        -1,
        "estimate the CORE metric every N steps (0: only after training; -1: never)",
        group="evaluation",
        least=-1,
        may_change=True,
    )
    sample_every: Count = option(
        2000,
        "print samples every N steps (0: only after training; -1: never)",
        group="evaluation",
        least=-1,
        may_change=True,
    )


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.data.corpus import open_corpus, shards_for
    from nanochat.dataloader import TextLoader
    from nanochat.evals.bpb import sample_writing, text_validation
    from nanochat.evals.core import core_scores
    from nanochat.evals.refinement import refinement_alarms
    from nanochat.objectives import pretraining
    from nanochat.run import training
    from nanochat.scaling import dry_run, plan_run
    from nanochat.tokenizer import Tokenizer

    config = replace(config, tag=config.tag or f"d{config.depth}")
    vocabulary = stage_dir("tok_train", config.tokenizer_tag) / "tokenizer.json"
    # A dry run needs shapes alone, so no GPU, corpus or tokenizer has to be there.
    if config.plan_only and not vocabulary.exists():
        tokenizer = None
        plan = plan_run(config, None)  # assumes a size of the vocabulary
    else:
        tokenizer = Tokenizer.load(vocabulary)
        plan = plan_run(config, tokenizer.vocab_size, tokenizer.bos)
    if not config.json:  # for programs: nothing else on stdout
        summary = [f"{name}: {format_value(value)}" for name, value in plan.summary.items()]
        print0(*plan.notes, *summary, sep="\n")
    if config.dry_run:
        print0(*dry_run(plan, config), sep="\n")
        return

    # From here on the folder is locked, and the model is built.
    with training("base_train", config, plan, tokenizer, in_fp8=config.fp8) as trainer:
        # A clock gives no token count: 0 leaves the choice to the corpus.
        num_shards = config.num_shards or shards_for(config.data, plan.tokens or 0)
        corpus = open_corpus(config.data, num_shards)
        source = TextLoader(
            corpus,
            tokenizer,
            trainer.rows,
            config.max_seq_len,
            seed=config.seed,
            lanes=config.lanes,
            rank=trainer.runtime.rank,
            world_size=trainer.runtime.world_size,
            device=trainer.runtime.device,
            repeats=config.supervision if config.carry else 0,
        )
        # Due evaluations run in this order, before a checkpoint is saved.
        evaluations = text_validation(trainer, corpus, config.eval_every, config.eval_bytes)
        evaluations += refinement_alarms(trainer, config.eval_every)
        evaluations += core_scores(trainer, config.core_metric_every)
        evaluations.append(sample_writing(trainer, config.sample_every))
        state = trainer.fit(
            source,
            pretraining(config),
            evaluations,
            data=corpus.manifest(),
            flops_per_token=plan.flops_per_token,
        )
        trainer.finish(state, {"model_tag": config.tag} | plan.summary | pretraining_metrics(state, source, corpus))


if __name__ == "__main__":
    run(main, Config)
