"""Flags of the public nanochat, of its forks and of other trainers: what does the same here, in a sentence.

The sentence stands in the error about an unknown flag. Every flag that it names is one of the script, or of the
command `where`; tests try the whole table.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

BASE = "scripts.base_train"
GOLF = "tracks.golf.train"


@dataclass(frozen=True)
class Hint:
    """What to use in place of a flag."""

    text: str
    where: str = ""  # the command that has the flags of the text, if it is another one

    @property
    def flags(self) -> list[str]:
        return re.findall(r"--[a-z][a-z0-9-]*", self.text)


class Row:
    """Some names of a flag elsewhere, and hints: the first whose flags the script has counts.

    names: separated by spaces. A hint that is a text is about the script's own flags.
    """

    def __init__(self, names: str, *hints: str | Hint) -> None:
        self.names = names.split()
        self.hints = [Hint(hint) if isinstance(hint, str) else hint for hint in hints]


SHAPE = Hint("python -m scripts.base_train decides the shape of a model, by --depth and --width", BASE)
FIELD = "it is a field of the model: --model=reference,{}, see GPTConfig in nanochat/gpt.py"
NO_FLAG = "there is no flag for it, {}"
SET_BASE = "set NANOCHAT_BASE_DIR for the folder of all runs"

ROWS = (
    # ---- the shape of the model ----
    Row("--n-layer --n-layers --num-layers --num-hidden-layers --layers", "use --depth", SHAPE),
    Row("--n-embd --n-embed --d-model --dim --model-dim --hidden-size", "use --width, or leave it to --depth", SHAPE),
    Row(
        "--n-head --n-heads --num-heads --num-attention-heads", "use --head-dim: heads are --width / --head-dim", SHAPE
    ),
    Row("--n-kv-head --n-kv-heads --num-kv-heads --num-key-value-heads", "use --kv-heads", SHAPE),
    Row("--rope-theta --rope-base", FIELD.format("rope_base=10000"), SHAPE),
    Row("--mlp-ratio --mlp-mult --mlp-expansion", FIELD.format("mlp_ratio=3"), SHAPE),
    Row("--softcap --logit-softcap", FIELD.format("softcap=15"), SHAPE),
    Row("--tie-embeddings --tie-word-embeddings", FIELD.format("tie_embeddings=true"), SHAPE),
    Row("--sliding-window --window-size", "use --window-pattern, like SSSL", SHAPE),
    Row("--dropout --bias", NO_FLAG.format("the model has neither dropout nor biases")),
    Row("--rope-dims", Hint("use python -m tracks.golf.train --model=golf,rope_dims=32", GOLF)),
    Row("--qk-gain --qk-gain-init", Hint("use python -m tracks.golf.train --model=golf,query_gain=1.5", GOLF)),
    Row("--xsa-last-n", Hint("use python -m tracks.golf.train --model=golf,exclusive_last=2", GOLF)),
    Row("--qat-last-frac", Hint("use python -m tracks.golf.train with --qat and --qat-share", GOLF)),
    # ---- batches ----
    Row(
        "--block-size --sequence-length --sequence-len --seq-len --seq-length --context-length --context-size --n-ctx"
        " --train-seq-len --max-length --max-sequence-length --max-position-embeddings",
        "use --max-seq-len",
        Hint("python -m scripts.base_train decides the context, by --max-seq-len", BASE),
    ),
    Row(
        "--batch-size --micro-batch-size --train-batch-size --per-device-train-batch-size --per-device-batch-size",
        "use --device-batch-size for the sequences at once, --examples-per-step and --num-samples for those of a step",
        "use --device-batch-size for the sequences at once on a device, --total-batch-size for the tokens of a step",
        "use --device-batch-size",
        "use --slots",
        NO_FLAG.format("the script chooses by memory and --device-type"),
    ),
    Row(
        "--gradient-accumulation-steps --gradient-accumulation --grad-accum-steps --grad-accum --accumulation-steps",
        "use --examples-per-step: micro-batches follow from it, --num-samples and --device-batch-size",
        "use --total-batch-size: micro-batches follow from it and --device-batch-size",
    ),
    Row(
        "--target-examples-per-step",
        "use --examples-per-step",
        "use --total-batch-size: a step counts tokens, not conversations",
    ),
    Row("--num-generations --group-size --n-samples", "use --num-samples"),
    # ---- the length of a run ----
    Row("--max-iters --max-steps --num-steps --train-steps --iterations --num-train-steps", "use --num-iterations"),
    Row("--max-wallclock-seconds --max-seconds --max-time", "use --target-seconds"),
    Row(
        "--epochs --num-train-epochs --num-epochs",
        "use --num-epochs",
        "use --target-param-data-ratio or --num-iterations",
    ),
    Row("--param-data-ratio --tokens-per-param", "use --target-param-data-ratio"),
    # ---- the optimizer ----
    Row(
        "--learning-rate --lr --max-lr",
        "use --init-lr-frac for all rates, or --matrix-lr, --embedding-lr, --unembedding-lr and --scalar-lr",
        "use --matrix-lr, --embedding-lr, --unembedding-lr and --scalar-lr",
    ),
    Row("--muon-lr --hidden-lr", "use --matrix-lr"),
    Row("--embed-lr --tied-embed-lr --wte-lr", "use --embedding-lr"),
    Row("--head-lr --lm-head-lr", "use --unembedding-lr"),
    Row("--init-lr-frac", "use --matrix-lr, --embedding-lr, --unembedding-lr and --scalar-lr"),
    Row("--min-lr --min-lr-ratio --lr-min", "use --final-lr-frac, a share of the rate"),
    Row("--warmup-ratio --warmup-iters --warmup-frac --lr-warmup-steps", "use --warmup-steps"),
    Row(
        "--warmdown-iters --cooldown-iters --cooldown-frac --lr-decay-iters --warmdown-last-frac --warmdown-steps",
        "use --warmdown-ratio, a share of the run",
    ),
    Row("--decay-lr --lr-scheduler-type --lr-schedule", "use --warmup-steps, --warmdown-ratio and --final-lr-frac"),
    Row("--wd --adam-wd --muon-wd --adam-weight-decay", "use --weight-decay, which is for matrices"),
    Row(
        "--beta1 --beta2 --adam-beta1 --adam-beta2 --muon-momentum --momentum --adam-eps",
        NO_FLAG.format("RULES in nanochat/param_groups.py has betas, momentum and eps of each group"),
    ),
    Row("--optimizer --optim", NO_FLAG.format("RULES in nanochat/param_groups.py has the optimizer of each group")),
    Row("--max-grad-norm --clip-grad --gradient-clip-val --grad-clip-norm", "use --grad-clip"),
    Row("--load-optimizer", "use --warm-start or --no-warm-start"),
    Row("--kl-coef --kl-beta --kl-coeff --beta", "use --kl"),
    # ---- device and precision ----
    Row("--device", "use --device-type"),
    Row("--precision --mixed-precision --bf16 --fp16 --amp --torch-dtype", "use --dtype"),
    Row("--fp8-recipe --fp8-format", "use --fp8 alone: each tensor has one scale"),
    Row("--fp8 --float8", Hint("only base training has --fp8: python -m scripts.base_train", BASE)),
    Row("--torch-compile --no-torch-compile", "use --compile or --no-compile"),
    Row("--gradient-checkpointing --activation-checkpointing --grad-checkpointing", "use --checkpointing"),
    Row("--fsdp --zero-stage --deepspeed", "use --shard-weights"),
    Row("--attn-implementation --attn-impl --flash --use-flash-attn", "use --attention"),
    Row(
        "--num-gpus --n-gpus --gpus --nproc-per-node --world-size",
        NO_FLAG.format("torchrun starts one process per GPU"),
    ),
    Row("--backend", NO_FLAG.format("torchrun and NCCL are set up by themselves")),
    # ---- evaluation ----
    Row("--eval-interval --val-every --val-loss-every --eval-freq --validate-every", "use --eval-every"),
    Row(
        "--eval-tokens --val-tokens --eval-iters --eval-steps --val-steps --split-tokens --val-batch-size",
        "use --eval-bytes for how much, as bytes are the same for all tokenizers, and --eval-every for how often",
        "use --eval-tokens for how much, and --eval-every for how often",
        "use --eval-bytes: bytes are the same for all tokenizers",
        "use --eval-examples for how much, and --eval-every for how often",
    ),
    Row("--eval-stride", "use --stride"),
    Row("--chatcore-every", "use --eval-metrics-every"),
    Row("--chatcore-max-cat --chatcore-max-sample", "use --eval-metrics-max-problems"),
    Row("--core-every", "use --core-metric-every"),
    Row("--task-name", "use --tasks", "use --task"),
    Row("--max-tokens --max-completion-tokens --max-gen-len", "use --max-new-tokens"),
    Row("--num-problems --limit", "use --max-problems", "use --max-per-task"),
    Row("--max-problems", "use --max-per-task", "use --eval-metrics-max-problems", "use --eval-examples"),
    # ---- checkpoints, names and logs ----
    Row(
        "--resume-from-step --resume-from-checkpoint --resume-from --resume-step --init-from --load-from",
        "use --resume, which a run does by itself; --resume=STEP goes back to a step",
    ),
    Row("--model-tag", "use --tag"),
    Row("--model-step", "use --step", NO_FLAG.format("training begins with the newest checkpoint of the parent")),
    Row("--save-interval --save-steps --checkpoint-every --checkpoint-interval --save-freq", "use --save-every"),
    Row("--save-total-limit --always-save-checkpoint --keep-checkpoints", "use --keep-last"),
    Row(
        "--out-dir --output-dir",
        f"use --out, or {SET_BASE}",
        f"{SET_BASE}, and --tag for the one of this run",
        SET_BASE,
    ),
    Row(
        "--checkpoint-dir --save-dir --base-dir",
        f"{SET_BASE}, and --tag for the one of this run",
        SET_BASE,
    ),
    Row(
        "--wandb --wandb-run --wandb-run-name --wandb-name --wandb-log --wandb-project",
        "use --run, the name of the run in W&B",
    ),
    Row("--report-to --run-name", "use --run=NAME, and --tracker=wandb or trackio"),
    Row(
        "--log-interval --log-every --logging-steps --log-freq",
        NO_FLAG.format("every step is in metrics.jsonl, in the folder of the run"),
    ),
    # ---- data ----
    Row(
        "--dataset --dataset-path --data-dir --data-path --train-data --train-files --input-bin --dataset-name",
        "use --data, a folder of text or a named corpus",
        "use --mixture, like smoltalk,json:my_chats.jsonl",
        "use --task",
    ),
    Row("--mmlu-epochs --gsm8k-epochs --identity-epochs", "use --mixture, like smoltalk,mmlu:3,gsm8k:4"),
    Row("--aqua-train-examples --aqua-val-examples", "use --mixture, like gsm8k,aqua@20000"),
    Row("--num-workers --dataloader-num-workers", NO_FLAG.format("a thread makes the batches ahead of training")),
    Row("--num-files --max-shards", "use --num-shards"),
    Row("--tokenizer --tokenizer-path --tokenizer-name", "use --tokenizer-tag"),
    Row("--vocab-size --n-vocab", Hint("python -m scripts.tok_train has --vocab-size", "scripts.tok_train")),
    Row("--hf-path", Hint("import the model first, with python -m tracks.export.import_hf", "tracks.export.import_hf")),
    Row("--shuffle-seed --random-seed --data-seed", "use --seed"),
)

# Short flags that the public nanochat has and this code does not.
SHORT = {"-x": "--max-problems", "-n": "--num-samples", "-m": "--max-new-tokens", "-d": "--dtype", "-b": "--slots"}

# Values that a known flag has elsewhere: field -> value -> hint.
VALUES = {
    "dtype": {
        "bfloat16": "use --dtype=bf16",
        "float16": "use --dtype=fp16",
        "half": "use --dtype=fp16",
        "float32": "use --dtype=fp32",
        "float": "use --dtype=fp32",
        "fp8": "--fp8 of python -m scripts.base_train adds products in 8 bits to --dtype=bf16",
        "float8": "--fp8 of python -m scripts.base_train adds products in 8 bits to --dtype=bf16",
    },
}


def hint_for(flag: str, known: Collection[str]) -> Hint | None:
    """Return what a script with these flags has in place of an unknown one; None for a flag that nobody has.

    flag: with underscores or dashes, or a short one.
    """
    if flag in SHORT and SHORT[flag] in known:
        return Hint(f"use {SHORT[flag]}")
    name = flag.replace("_", "-")
    for one in ROWS:
        if name in one.names:
            return next((hint for hint in one.hints if hint.where or has_flags(hint, known)), None)
    return None


def has_flags(hint: Hint, known: Collection[str]) -> bool:
    """Return True if all flags of a hint are known; --no-compile is one with --compile."""
    return all(flag in known or flag.replace("--no-", "--") in known for flag in hint.flags)
