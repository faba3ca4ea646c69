"""Train a golf entry: base training with compilation before the clock, and quantization-aware at the end.

python -m tracks.golf.train --model=golf --depth=2 --width=96 --head-dim=32 --target-seconds=50 --data=world
"""

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.metrics import pretraining_metrics, scale_metrics
from nanochat.settings import PretrainSettings, given

WARM_UP = 3  # steps on dummy tokens before the clock starts, to compile


@options("golf")
class Config(PretrainSettings):
    """Train a golf entry. The checkpoint is a base model, which tracks.golf.pack packs."""

    tag = option("golf", "name of the run, and of its folders")
    model = "golf"
    # nanochat/quant.py has the grammar.
    qat: str = option("", "plan for quantization-aware training, like blocks=int6-row,embed=int8-row (default: none)")
    qat_share: float = option(0.15, "fraction of the run, at its end, with quantization-aware training", below=1)


def main(config: Config) -> None:
    from nanochat.dataloader import open_text
    from nanochat.evals.bpb import text_validation
    from nanochat.models import new_model
    from nanochat.objectives import next_token
    from nanochat.run import training
    from nanochat.scaling import plan_with_tokenizer
    from nanochat.train import warm_up
    from tracks.golf.model import require_golf
    from tracks.golf.qat import FakeQuantization

    if config.qat and config.fp8:
        raise UserError("--fp8 and --qat cannot be combined, fp8 layers have their own codes: leave one out")
    if config.qat and config.shard_weights:
        raise UserError("--shard-weights and --qat cannot be combined, layers are rounded whole: leave one out")
    plan, tokenizer = plan_with_tokenizer(config)
    require_golf(plan.model)
    # On shapes alone: a mistake in the plan of quantization is found before anything is written.
    FakeQuantization(new_model(plan.model), config.qat, 0)
    if config.dry_run:
        from nanochat.cost import print_cost

        print_cost(plan, config)
        return

    assert tokenizer is not None  # only a dry run does without
    with training("base_train", config, plan, tokenizer) as trainer:
        model = trainer.model
        if config.compile and not model.compiled:
            model.compile_parts()  # on a CPU too, where a short run would not be compiled on its clock
        source = open_text(trainer)
        corpus = source.data
        evaluations = text_validation(trainer, corpus)
        rounding = FakeQuantization(model, config.qat, 1 - config.qat_share)
        progress = 0.0
        if trainer.resumed:
            before = trainer.resumed.manifest["loop"]
            # A finished run may go on to a longer horizon.
            progress = before["step"] / plan.steps if plan.steps else before["progress"]
        if model.compiled and progress < 1:
            for rounds in (True, False) if config.qat else (False,):  # both ways are compiled
                rounding.switch(rounds)
                warm_up(model, next_token, trainer.optimizer, trainer.device_rows, given(config.max_seq_len), WARM_UP)
        rounding(progress)
        state = trainer.fit(
            source,
            next_token,
            evaluations,
            after_step=[lambda state: rounding(state.progress)],
        )
        metrics = plan.summary | pretraining_metrics(state, corpus, source.epochs)
        metrics |= scale_metrics(state, trainer.runtime)
        trainer.finish(state, {"model_tag": config.tag} | metrics)


if __name__ == "__main__":
    run_script(main)
