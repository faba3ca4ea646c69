"""Reinforcement learning: sample several answers to each prompt of a task, reinforce the better ones.

python -m scripts.chat_rl --tag=d8 --task=GSM8K
torchrun --standalone --nproc_per_node=8 -m scripts.chat_rl -- --tag=d24 --task=GSM8K
"""

from typing import TYPE_CHECKING, Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.settings import AnswerSettings, AnswerTuneSettings, SamplingSettings, given
from tasks import JUDGED, SFT_MIXTURE, open_conversations, task_to_learn
from tasks.common import find_task

if TYPE_CHECKING:
    from nanochat.statistics import Estimate


@options("objective")
class Config(AnswerTuneSettings, SamplingSettings):
    """Improve a model with rewards for sampled answers. Settings that default to None are inherited from the parent."""

    task: str = option(
        "",
        "task to learn, with a train and a test split (default: GSM8K, or World-Sums for a model of a world)",
        group="data",
        may_change=True,  # another task has other data, which a resumed run refuses
        in_card=False,  # the metric Task has the name
    )

    # A step has examples_per_step * num_samples answers, each a training row.
    num_samples: Count = option(4, "answers sampled for each prompt", group="samples", least=2)
    # A longer answer is cut off, and then has no end token to learn; 99 % of GSM8K's solutions are shorter.
    max_new_tokens = 256
    temperature = 0.7

    advantage: Literal["mean", "std"] = option(
        "mean", "mean: reward minus the mean of the group; std: also divided by the group's standard deviation"
    )
    # Clip compares with the probabilities at sampling, which the engine returns for every token.
    policy_loss: Literal["plain", "clip"] = option(
        "plain", "plain, or clip: limit the ratio to the sampler's probability"
    )
    # Above 0, the frozen parent takes memory beside the model in training.
    kl: float = option(0.0, "coefficient of the KL penalty to the parent", off=0)

    # Rewards speak of one task alone; without replay a small model may unlearn others.
    replay_rows: Count = option(
        0, "conversations replayed in each step, over all ranks: learned as in SFT (0: none)", group="replay", off=0
    )
    replay: str = option(
        "", "conversations to replay, written as --mixture (default: the default mixture of chat_sft)", group="replay"
    )
    replay_weight: float = option(
        1.0, "weight of the mean loss of replayed tokens, beside that of the answers' tokens", group="replay", off=1.0
    )

    eval_every = 60
    eval_examples: Count = option(400, "test prompts per evaluation (0: all)", group="evaluation")
    # One answer is the likeliest; several are sampled, for pass@k.
    eval_samples: Count = option(
        1, "answers per test prompt (above 1: also pass@k)", group="evaluation", least=1, off=1
    )
    save_every = option(60, in_card=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task:
            find_task(self.task, JUDGED)  # JUDGED tasks can tell right answers from wrong ones
        if self.replay and not self.replay_rows:
            raise UserError("--replay names conversations, but none is replayed: add --replay-rows=16")
        if not self.temperature or self.top_k == 1:
            flag = "--top-k=1" if self.temperature else "--temperature=0"
            raise UserError(f"{flag}: all answers to a prompt would be the same, and teach nothing")


def main(config: Config) -> None:
    from nanochat.engine import Engine
    from nanochat.evals.chat import evaluate_task, log_figures
    from nanochat.models import load_model
    from nanochat.rollouts import PolicyGradient, Replay, open_rollouts, reinforcement_metrics
    from nanochat.run import tuning

    if config.total_batch_size:
        raise UserError("--total-batch-size does not apply to samples: use --examples-per-step and --num-samples")
    answers_per_step = config.examples_per_step * config.num_samples
    if config.dry_run:
        from nanochat.timing import FORWARD, GSM8K_PROMPTS, GSM8K_TESTS
        from nanochat.tuning_plan import Answers, print_answer_plan

        sampled = Answers(
            config.num_samples,
            config.max_new_tokens,
            worth=1 + (FORWARD if config.kl else 0) + config.replay_rows / answers_per_step,
            frozen=config.kl > 0,
            tests=(config.eval_examples or GSM8K_TESTS) * config.eval_samples,
        )
        usual = GSM8K_PROMPTS if config.task in ("", "GSM8K") else None
        print_answer_plan(config, lambda tokenizer: task_to_learn(config.task, tokenizer)[1], sampled, usual)
        return
    with tuning("chat_rl", config, rows=answers_per_step) as trainer:
        name, task, test = task_to_learn(config.task, trainer.tokenizer_tag)
        engine = Engine(trainer.model, trainer.tokenizer)
        replay = None
        if config.replay_rows:
            chats = open_conversations(config.replay, SFT_MIXTURE, trainer.tokenizer_tag, seed=config.seed)
            replay = Replay(chats, config.replay_rows, config.replay_weight)
        source = open_rollouts(trainer, name, task, engine, replay)
        reference = None
        if config.kl:
            parent = given(trainer.start.parent)
            place = parent.stage, parent.tag, parent.step
            reference = load_model(*place, trainer.runtime, sha256=parent.sha256).model
        answers = AnswerSettings(
            temperature=config.temperature if config.eval_samples > 1 else 0.0,
            top_k=config.top_k,
            top_p=config.top_p,
            num_samples=config.eval_samples,
            max_new_tokens=config.max_new_tokens,
            max_problems=config.eval_examples,
        )

        def test_scores() -> "dict[str, Estimate]":
            engine.update_weights()
            score = evaluate_task(test, trainer.model, trainer.tokenizer, trainer.runtime, answers, name, engine=engine)
            return {f"pass@{k}": estimate for k, estimate in score.pass_at.items()}

        state = trainer.fit(
            source,
            PolicyGradient(config.policy_loss, config.kl, reference, replay is not None),
            [log_figures(trainer, test_scores)],
            after_step=[source.follow],
        )
        trainer.finish(state, reinforcement_metrics(state, name, len(task)))


if __name__ == "__main__":
    run_script(main)
