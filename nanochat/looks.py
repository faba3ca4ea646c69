"""What is looked at while a base model trains: validation text, the CORE metric, what it writes."""

from typing import Any

from nanochat.evals.bpb import EvalText, bits_per_byte, validation
from nanochat.evals.core import estimate
from nanochat.evals.samples import sampling
from nanochat.train import every

SAMPLE_TOKENS = 16  # behind each prompt


def looks(config: Any, model: Any, tokenizer: Any, text: EvalText, rows: int, runtime: Any, log: Any) -> list[every]:
    """Hooks of the loop, as often as `config`, scripts.base_train's, says; rows: of a batch."""
    hooks, length = [], config.max_seq_len
    if config.eval_every >= 0:
        measure = lambda: {"bpb": bits_per_byte(model, text, length, rows, runtime)[:2]}  # noqa: E731
        validate = validation(measure, len(text.ids), config.eval_every, model, runtime, log)
        hooks.append(every(config.eval_every, validate, at_start=True))
    if config.core_metric_every >= 0:
        budget = 0 if runtime.device.type == "cpu" else rows * length  # as much memory as training has
        core = estimate(model, tokenizer, runtime, budget, log, config.core_metric_max_per_task)
        hooks.append(every(config.core_metric_every, core))
    if config.sample_every >= 0:
        hooks.append(every(config.sample_every, sampling(model, tokenizer, SAMPLE_TOKENS, runtime)))
    return hooks
