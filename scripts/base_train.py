"""Pretrain the base model: predict the next token of a corpus.

python -m scripts.base_train --depth=8
torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --fp8
"""

from dataclasses import asdict, dataclass

from nanochat.config import Count, option, run
from nanochat.log import MetricLog, format_value, print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir

MAY = {"may_change": True}
LOOK = {"group": "evaluation", "least": -1}
SIDE = {"may_change": True, "in_card": False}


@dataclass(frozen=True)
class Config:
    """Pretrain the base model on a corpus. One dial, --depth, decides what is not given."""

    run: str = option("dummy", "name for W&B; dummy: do without", group="run", may_change=True)
    tag: str = option("", "name of this run's folder; empty: d and the depth", group="run", **SIDE)
    seed: Count = option(42, "of the weights and of the order of the data", group="run", least=0)
    resume: str = option("auto", "auto: go on if this run was begun; a step's number; or never", group="run", **SIDE)
    dry_run: bool = option(False, "print the plan, with its cost, and stop", group="run", **SIDE)
    on: str = option("", "hardware to plan for, like 8xH100; empty: this machine", group="run", **SIDE)

    device_type: str = option("auto", "auto, cuda, mps or cpu", group="device", may_change=True)
    dtype: str = option("auto", "auto, bf16, fp16 or fp32; on a CPU auto measures", group="device")
    attention: str = option("auto", "auto, or a path of nanochat/attention.py", group="device", **SIDE)
    compile: bool = option(
        True, "compile the blocks, where the run is long enough to gain by it", group="device", **SIDE
    )
    fp8: bool = option(False, "matrix products in 8 bits, on GPUs that have them", group="device")
    checkpointing: bool = option(False, "compute activations twice to save memory", group="device", may_change=True)

    # A row of gpt.CONFIGURATIONS; fields of GPTConfig may follow: --model=reference,qk_gain=true
    model: str = option("reference", "architecture: reference, induction, october-2025 or portable", group="model")
    depth: Count = option(12, "layers: the dial", group="model", least=1, unit="LAYERS")
    aspect_ratio: Count = option(64, "width for each layer of depth", group="model", least=1)
    width: Count = option(0, "0: from depth", group="model", least=0)
    head_dim: Count = option(128, "width of a head, of which the model's is a multiple", group="model", least=1)
    kv_heads: Count = option(0, "heads of keys and values, 0: as many as of queries", group="model", least=0)
    max_seq_len: Count = option(2048, "length of the context", group="model", least=1, unit="TOKENS")
    window_pattern: str = option("", "S and L: layers that see a quarter or all; empty: the model's", group="model")

    num_iterations: Count = option(-1, "steps", group="horizon", unit="STEPS")
    target_flops: float = option(-1.0, "compute to spend", group="horizon", unit="FLOPS")
    target_seconds: float = option(-1.0, "time to train", group="horizon", unit="SECONDS")
    target_param_data_ratio: float = option(-1.0, "tokens for each parameter; 12 if none is given", group="horizon")

    device_batch_size: str = option("auto", "rows at once on a device, auto: the most that fit", group="batch", **MAY)
    total_batch_size: Count = option(-1, "of a step; -1: from the horizon", group="batch", least=1, unit="TOKENS")

    embedding_lr: float = option(0.3, "AdamW, before scaling by batch and width", group="optimizer", least=0)
    unembedding_lr: float = option(0.008, "AdamW, before scaling by batch and width", group="optimizer", least=0)
    matrix_lr: float = option(0.02, "Muon, before scaling by batch", group="optimizer", least=0)
    scalar_lr: float = option(0.5, "AdamW, before scaling by batch", group="optimizer", least=0)
    weight_decay: float = option(0.28, "Muon's, before scaling by batch and horizon", group="optimizer", least=0)
    warmup_steps: Count = option(40, "to the full learning rate", group="optimizer", least=0, unit="STEPS")
    warmdown_ratio: float = option(0.65, "share of the run in which it falls", group="optimizer", least=0)
    final_lr_frac: float = option(0.05, "of the learning rate at the end", group="optimizer", least=0)
    grad_clip: float = option(0.0, "largest norm of the gradient, 0: any", group="optimizer", least=0)

    data: str = option("auto", "folder of text, corpus by name, or a mix of them", group="data")
    num_shards: Count = option(0, "of a named corpus; 0: as the horizon needs", group="data", least=0, in_card=False)
    skip_bad: bool = option(False, "leave out damaged files and rows", group="data", **SIDE)
    tokenizer_tag: str = option("default", "run whose tokenizer to use", group="data", in_card=False)
    lanes: Count = option(64, "streams the data is dealt into, a multiple of the ranks", group="data", in_card=False)
    overflow: str = option("carry", "the end of a text too long for its row: carry, or crop", group="data")

    eval_every: Count = option(250, "steps between validations; 0: at the ends; -1: none", **LOOK)
    eval_bytes: Count = option(-1, "of validation; -1: 20 MB, on a CPU 500 kB", **LOOK | {"least": 1}, unit="BYTES")
    core_metric_every: Count = option(-1, "steps between estimates; 0: at the end; -1: none", **LOOK, **MAY)
    core_metric_max_per_task: Count = option(500, "items of a task, 0: all", group="evaluation", least=0, **MAY)
    sample_every: Count = option(2000, "steps between samples; 0: at the end; -1: none", **LOOK, **MAY)

    save_every: Count = option(1000, "steps between them; -1: only the last", group="checkpoints", least=-1, **SIDE)
    keep_last: Count = option(2, "newest checkpoints to keep", group="checkpoints", least=0, **SIDE)
    keep_every: Count = option(0, "keep those of every so many steps too", group="checkpoints", least=0, **SIDE)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat import fp8, schedules
    from nanochat import train as loop
    from nanochat.blueprint import draw, estimate
    from nanochat.card import curves, training_facts
    from nanochat.checkpoint import MANIFEST
    from nanochat.data.corpus import open_corpus, shards_for
    from nanochat.dataloader import TextLoader, merge_states
    from nanochat.evals.bpb import read_text
    from nanochat.looks import looks
    from nanochat.objectives import next_token
    from nanochat.restore import has_news, hold_for_all, keeping, put_back, run_to_go_on_with
    from nanochat.runtime import keep_compiled, planned_hardware, setup
    from nanochat.tokenizer import Tokenizer

    keep_compiled()
    tag, length = config.tag or f"d{config.depth}", config.max_seq_len
    folder, outcome = stage_dir("base_train", tag), Outcome.begin("base_train", tag, config)
    vocabulary = stage_dir("tok_train", config.tokenizer_tag) / "tokenizer.json"
    tokenizer = Tokenizer.load(vocabulary) if vocabulary.exists() or not config.dry_run else None
    plan = draw(config, tokenizer)
    print0(*plan.notes, *(f"{name}: {format_value(value)}" for name, value in plan.summary.items()), sep="\n")
    if config.dry_run:
        print0(*estimate(plan, config, *planned_hardware(config.on)), sep="\n")
        return

    with (
        setup(config.device_type, config.dtype, config.attention) as runtime,
        hold_for_all(folder, runtime),
        MetricLog(folder, config.run, asdict(config)) as log,
    ):
        begun = run_to_go_on_with(folder, config, tokenizer, runtime)
        runtime = runtime.with_dtype(begun.manifest["dtype"]) if begun else runtime
        num_shards = config.num_shards or shards_for(config.data, plan.tokens or 0)
        corpus = open_corpus(config.data, num_shards, skip_bad=config.skip_bad)
        text = read_text(corpus.batches("val"), tokenizer, max(config.eval_bytes, 0) or runtime.validation_bytes)
        model, optimizer, rows = plan.build(config, begun or config.seed, runtime)
        place = {"rank": runtime.rank, "world_size": runtime.world_size, "device": runtime.device}
        options = {"lanes": config.lanes, "overflow": config.overflow}
        source = TextLoader(corpus, tokenizer, plan.rows, length, seed=config.seed, **place, **options)
        about = {"stage": "base_train", "parent": None, "data": corpus.manifest()}
        about["tokenizer"] = {"tag": config.tokenizer_tag, "hash": tokenizer.content_hash}
        with source, keeping(folder, config, runtime, model, optimizer, source, merge_states, **about) as save:
            state = loop.State(**put_back(begun, optimizer, source)) if begun else loop.State()
            log.resume(state.step if begun else -1)
            # Saved last, so that a checkpoint knows what was found before it.
            hooks = [*looks(config, model, tokenizer, text, rows, runtime, log)]
            hooks.append(loop.every(config.save_every, save, at_stop=True))
            moves = schedules.pretraining(config.warmup_steps, config.warmdown_ratio, config.final_lr_frac)
            horizon = {"steps": plan.scale.steps, "seconds": plan.scale.seconds, "clip": config.grad_clip}
            steps = loop.Plan(rows, plan.flops_per_token, moves, lambda: fp8.refresh(model), **horizon)
            loop.train(model, source, next_token, optimizer, steps, hooks, runtime, log, state)
        if has_news(state, begun, folder) and runtime.rank == 0:
            outcome.metrics = plan.summary | training_facts(state, source, corpus, runtime)
            outcome.curves = curves(log)
            outcome.add_artifact(folder / "latest" / MANIFEST)
            outcome.write()


if __name__ == "__main__":
    run(main, Config)
