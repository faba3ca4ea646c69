"""Direct preference optimization: learn from pairs of a chosen and a rejected answer to the same prompt.

python -m tracks.preferences.train --tag=d8 --pairs=pairs.jsonl
torchrun --standalone --nproc_per_node=8 -m tracks.preferences.train -- --tag=d24 --pairs=pairs.jsonl
"""

from typing import Literal

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.settings import AnswerTuneSettings, TaskScoreSettings
from tasks import open_tasks


@options("objective")
class Config(AnswerTuneSettings, TaskScoreSettings):
    """Train a model to prefer chosen answers. Settings that default to None are inherited from the parent."""

    public_lr_frac = 0.1
    init_lr_frac = option(
        None,
        "initial learning rate, as a fraction of the parent's (default: 0.015; of a public model's rates, which are "
        "those of fine-tuning, 0.1)",
    )
    # A resumed run refuses other pairs, wherever the files are.
    pairs: str = option(
        "",
        "JSONL files with prompt, chosen and rejected, separated by commas",
        group="data",
        may_change=True,
        in_card=False,
    )
    held_out: float = option(0.05, "share of the pairs that is held out for validation", group="data", below=1)
    # Keys of PREFERENCE_LOSSES.
    loss: Literal["dpo", "dpo-norm"] = option(
        "dpo", "dpo, or dpo-norm: log-probabilities per token, so that length does not count"
    )
    # A small one lets the model move far from the parent; with 0 nothing is learned.
    beta: float = option(0.1, "β of DPO: factor on the margin", least=1e-4)
    sft_weight: float = option(0.0, "weight of the loss on the chosen answers")
    eval_every = 20
    eval_metrics_every = option(0, "score the tasks every N steps (0: only before and after training; -1: never)")


def main(config: Config) -> None:
    from nanochat.evals.chat import log_figures, task_scores
    from nanochat.run import tuning
    from tracks.preferences.pairs import Preference, open_pairs, pair_scores, preference_metrics, read_pairs

    if config.total_batch_size:
        raise UserError("--total-batch-size does not apply to pairs: use --examples-per-step")
    objective = Preference(config.loss, config.beta, config.sft_weight)
    pairs = read_pairs(config.pairs)
    if config.dry_run:
        from nanochat.timing import FORWARD
        from nanochat.tuning_plan import Answers, print_answer_plan

        held_out = int(len(pairs) * config.held_out)
        # The reference reads each pair once.
        given = Answers(2, worth=1 + FORWARD, tests=2 * held_out)
        print_answer_plan(config, lambda tokenizer: [chosen for chosen, _ in pairs[held_out:]], given)
        return
    with tuning("chat_dpo", config, rows=2 * config.examples_per_step) as trainer:
        source = open_pairs(trainer, pairs, objective)
        scores = log_figures(trainer, lambda: pair_scores(trainer, source, objective, source.held_out))
        state = trainer.fit(source, objective, [scores, *task_scores(trainer, open_tasks, at_start=True)])
        trainer.finish(state, preference_metrics(state, source))


if __name__ == "__main__":
    run_script(main)
