#!/usr/bin/env bash
# The main job, and the table of contents: from text to a report card, one command a stage.
#   bash speedrun.sh                   on the first text that this machine has
#   bash speedrun.sh --data=FOLDER     on .parquet, .txt or .md files of your own
#   bash speedrun.sh --tag=NAME        in folders of that name: one for each data and depth
#   bash speedrun.sh --depth=N         with a model of N layers (4)
#   bash speedrun.sh --seconds=N       training it for so long (300 without a GPU, else as long as its size wants)
# Artifacts go to NANOCHAT_BASE_DIR (default ~/.cache/nanochat), the card to report.md beside this file.
set -euo pipefail

data=auto tag=default depth=4 seconds=
for argument in "$@"; do
  case $argument in
    --data=?*) data=${argument#--data=} ;;
    --tag=?*) tag=${argument#--tag=} ;;
    --depth=?*) depth=${argument#--depth=} ;;
    --seconds=?*) seconds=${argument#--seconds=} ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) printf 'speedrun: unknown argument %s, it takes --data=FOLDER, --tag=NAME, --depth=N, --seconds=N\n' "$argument" >&2; exit 2 ;;
  esac
done
if [ -d "$data" ]; then data=$(CDPATH='' cd -- "$data" && pwd); fi # where it lies now: the next line leaves this folder
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

stage() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$@" || { local status=$?; printf 'speedrun: stopped in %s (exit status %s)\n' "$name" "$status" >&2; exit "$status"; }
}

# The environment: locked packages, rustbpe built from source. Under three seconds when nothing changed.
stage setup bash runs/setup.sh
python=.venv/bin/python

# Tokens are what the model reads and writes: learn the vocabulary first. 65,536 still fits into 16 bits a token; a model
# that a CPU can train is better off with few words.
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" -gt 0 ]; then words=65536; else words=4096; fi
stage tok_train "$python" -m scripts.tok_train --vocab-size="$words" --max-chars=2e9 --doc-cap=10000 --data="$data" --tag="$tag"

# How much shorter do they make a text than GPT-2's and GPT-4's? What they save, every later stage saves.
stage tok_eval "$python" -m scripts.tok_eval --data="$data" --tag="$tag"

# Learn the language, a token at a time. On GPUs depth decides the rest; a CPU gets a short context and a clock.
if [ "$gpus" -gt 0 ]; then
  launch=("$python" -m torch.distributed.run --standalone --nproc_per_node="$gpus" -m)
  size=(${seconds:+--target-seconds="$seconds"} --core-metric-every=2000) check=() few=() tune=() problems=()
  reward=(--examples-per-step="$(((16 + gpus - 1) / gpus * gpus))") # each GPU has as many
else
  launch=("$python" -m)
  size=(--head-dim=64 --max-seq-len=512 --window-pattern=L --total-batch-size=2048 --target-seconds="${seconds:-300}")
  check=(--eval-bytes=500000) few=(--max-per-task=100)
  tune=(--target-seconds="${seconds:-150}" --eval-metrics-max-problems=50)
  problems=(--max-problems=50 --max-new-tokens=128)
  reward=(--num-iterations="$((1 + ${seconds:-300} / 15))" --eval-examples=100)
fi
base=(--depth="$depth" --data="$data" --tag="$tag" --tokenizer-tag="$tag" ${size[@]+"${size[@]}"} ${check[@]+"${check[@]}"})
stage base_train "${launch[@]}" scripts.base_train "${base[@]}"

# How well does it predict text, of training and new to it? And what does it write?
stage base_loss "${launch[@]}" scripts.base_loss --tag="$tag" ${check[@]+"${check[@]}"}

# Does it know more than chance? CORE: 22 tasks of a bundle, of a mirror or of the embedded world.
bundle=${NANOCHAT_HUB:-${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}/world}/eval_bundle
if [ -d "$bundle" ]; then
  stage base_eval "${launch[@]}" scripts.base_eval --tag="$tag" ${few[@]+"${few[@]}"}
else
  printf '\nspeedrun: base_eval is left out: there is no %s\n' "$bundle"
fi

# The stages from here learn from the data sets of tasks, which a machine may lack.
if "$python" -m scripts.prepare --data= --tasks=arc-easy; then
  # The form of conversations, of choosing by letter and of calling the calculator: every token of them is learned.
  stage mid_train "${launch[@]}" scripts.mid_train --tag="$tag" ${tune[@]+"${tune[@]}"}

  # What has that taught? The same questions again after each stage that follows.
  stage chat_eval_mid "${launch[@]}" scripts.chat_eval --source=mid --tag="$tag" ${problems[@]+"${problems[@]}"}

  # To answer: of conversations only what the assistant says, until it says that it is done.
  stage chat_sft "${launch[@]}" scripts.chat_sft --tag="$tag" ${tune[@]+"${tune[@]}"}
  stage chat_eval_sft "${launch[@]}" scripts.chat_eval --source=sft --tag="$tag" ${problems[@]+"${problems[@]}"}

  # To be right: of several answers of its own to a question, the better ones become likelier.
  if "$python" -m scripts.prepare --data= --tasks=gsm8k; then
    stage chat_rl "${launch[@]}" scripts.chat_rl --task=GSM8K --tag="$tag" "${reward[@]}"
    stage chat_eval_rl "${launch[@]}" scripts.chat_eval --source=rl --tag="$tag" ${problems[@]+"${problems[@]}"}
  else
    printf '\nspeedrun: chat_rl is left out: its questions cannot be had\n'
  fi
else
  printf '\nspeedrun: mid_train, chat_sft and chat_rl are left out: their data sets cannot be had\n'
fi

# The report card: one section for each stage above, and the summary.
stage report "$python" -m nanochat.report --out=report.md
