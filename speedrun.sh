#!/usr/bin/env bash
# The main job, and the table of contents: from text to a report card, one command a stage.
#   bash speedrun.sh     what this machine can do: looks, says what it plans, and does it
#   --scale=NAME         embedded, cpu, 1gpu or 8xh100 instead of what it would choose
#   --depth=N            a model of N layers instead of the scale's
#   --data=FOLDER        .parquet, .jsonl, .txt or .md files of your own, or a corpus by name
#   --tag=NAME           in folders of that name, so that several runs stand side by side
#   --seed=N             another embedded world, other weights, another order of the data
#   --wandb=NAME         with W&B as a mirror of the metrics
#   --until=STAGE        no further than that stage
#   --seconds=N          base training of so long, other clocks in proportion
#   --fresh              from the start: what is there is set aside
# Started again with the same flags it goes on where it was, within a stage too. Artifacts go to NANOCHAT_BASE_DIR
# (default ~/.cache/nanochat), the card to report.md beside this file. The flags of each stage: nanochat/jobs/scales.py.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
from=$PWD
for name in NANOCHAT_BASE_DIR NANOCHAT_HUB; do # folders, named from here
  case ${!name:-} in '' | [/~]*) ;; *) export "$name=$from/${!name}" ;; esac
done
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

# The environment: locked packages, rustbpe built from source. Under three seconds when nothing changed.
bash runs/setup.sh
python=.venv/bin/python

# The plan: hardware, network and disk are looked at, a scale is chosen. What is told goes on to the terminal, what comes
# back is the folder of this run; its lock is ours until this script and all that it started have ended.
{ run=$("$python" -m scripts.plan --cwd="$from" --start=4 "$@" 4>&1 >&3); } 3>&1
exec 9>>"$run/lock"

# Each stage is python -m scripts.STAGE, under torchrun where there are several GPUs. Finished before: it is skipped;
# stopped: it goes on; its flags or what it starts from changed: it is done anew. A failure ends this script.
stage() { "$python" -m nanochat.jobs.runner --run="$run" --stage="$1"; }

# Text: the embedded world is written here; that of the hub comes while the tokenizer learns from its first shards.
stage world
"$python" -m nanochat.jobs.runner --run="$run" --stage=download & download=$!
trap 'kill "$download" 2>/dev/null || true' EXIT

# Tokens are what the model reads and writes: learn the vocabulary first.
stage tok_train

# How much shorter do they make a text than GPT-2's and GPT-4's? What they save, every later stage saves.
stage tok_eval

# Learn the language, a token at a time: nearly all of the time goes here.
wait "$download"
trap - EXIT
stage base_train

# How well does it predict text, of training and new to it? And what does it write?
stage base_loss

# Does it know more than chance? CORE: the tasks of a bundle, of a mirror or of the embedded world.
stage base_eval

# The form of conversations, of choosing by letter and of calling the calculator: every token of them is learned.
stage mid_train

# What has that taught? The same questions again after each stage that follows.
stage chat_eval_mid

# To answer: of conversations only what the assistant says, until it says that it is done.
stage chat_sft
stage chat_eval_sft

# To be right: of several answers of its own to a question, the better ones become likelier.
stage chat_rl
stage chat_eval_rl

# The report card: one section for each stage above, and the summary.
stage report
