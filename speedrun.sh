#!/usr/bin/env bash
# The main job and the table of contents: from text to a report card, one command per stage.
#   bash speedrun.sh     plan for this machine, print the plan, and run it
#   --scale=NAME         embedded, cpu, 1gpu or 8xh100; auto by default
#   --depth=N            layers in the model, instead of the scale's
#   --data=FOLDER        your own .parquet, .jsonl, .txt or .md files, or a named corpus
#   --tag=NAME           name for the run's folders; runs with different tags do not interfere with each other
#   --seed=N             seed for the embedded world, the weights and the data order
#   --wandb=NAME         mirror the metrics to W&B under this name
#   --trackio=NAME       mirror the metrics to trackio, on this machine, under this name
#   --until=STAGE        stop after this stage
#   --seconds=N          time for base training; other stages in proportion
#   --fresh              start from scratch; earlier results are archived
#   --dry-run            print the plan and exit: nothing is started or written
# Run the same command again to resume, even in the middle of a stage. Artifacts go to NANOCHAT_BASE_DIR (default
# ~/.cache/nanochat), the card to report.md next to this file. The flags for each stage are in nanochat/jobs/scales.py.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
from=$PWD
for name in NANOCHAT_BASE_DIR NANOCHAT_HUB; do # relative folders start from here
  case ${!name:-} in '' | [/~]*) ;; *) export "$name=$from/${!name}" ;; esac
done
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

# Environment: locked packages, rustbpe built from source. Under three seconds if nothing changed. A dry run uses the
# environment as it is, and exits here.
python=.venv/bin/python
case " $* " in *" --dry-run "* | *" --dry_run "*)
  if [ ! -e .venv/ready ]; then bash runs/setup.sh; fi
  exec "$python" -m scripts.plan --cwd="$from" "$@"
  ;;
esac
bash runs/setup.sh

running= download= beating= # processes that end with this script
end() {
  trap '' INT TERM HUP QUIT USR1 EXIT
  for process in $running $download; do # both at once: a stage may take minutes to save
    # The number of a process that has ended may be another one's.
    case $'\n'$(jobs -rp)$'\n' in *$'\n'"$process"$'\n'*) kill -TERM "$process" 2>/dev/null || true ;; esac
  done
  for process in $running $download; do
    wait "$process" || true
  done
  if [ -n "$beating" ]; then
    kill "$beating" 2>/dev/null || true
    printf '%s\n' "$1" >"$meeting/end" # the other nodes end too
  fi
  exit "$1"
}
trap 'end $?' EXIT
trap 'end 130' INT
trap 'end 143' TERM
trap 'end 129' HUP
trap 'end 131' QUIT
trap 'end 138' USR1
# torchrun passes these on to the ranks, which have time to save; Slurm sends the last one.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT=240

# With several nodes, the others join the distributed steps of node 0, and do not get beyond this line.
case ${NANOCHAT_NODES:-1} in
  1 | *:1) ;;
  *)
    if [ ! -e tracks/scale/nodes.sh ]; then
      printf 'error: NANOCHAT_NODES=%s: a job on several nodes belongs to tracks/scale, which is not here\n' "$NANOCHAT_NODES" >&2
      exit 2
    fi
    . tracks/scale/nodes.sh
    ;;
esac

# Plan: scale, steps, time, disk, dollars. The plan is printed; descriptor 4 returns the job's folder. The lock in that
# folder is held until this script and all its child processes have ended.
{ job=$("$python" -m scripts.plan --cwd="$from" --save=4 "$@" 4>&1 >&3); } 3>&1
exec 9>>"$job/lock"

# Stages that have finished, from the first one on: one process looks at them together.
finished=$("$python" -m nanochat.jobs.runner --job="$job" --finished)

# A stage is `python -m scripts.STAGE`, under torchrun if there are several GPUs. A finished stage is skipped, a stopped
# one resumes, one with changed flags or inputs is repeated. A failure ends this script.
stage() {
  case " $finished " in *" $1 "*) printf '== %s: already finished\n' "$1" && return ;; esac
  "$python" -m nanochat.jobs.runner --job="$job" --step="$1" --lock=9 & running=$!
  wait "$running" # unlike a command in the foreground, a wait ends at a signal
  running=
}

# With several nodes, files, versions, GPUs and network are checked before any training.
if [ -n "$beating" ]; then stage preflight; fi

# A download runs beside other stages, and prints how far it is. The stage that needs it waits for its end.
start_download() {
  "$python" -m nanochat.jobs.runner --job="$job" --step="$1" --lock=9 & download=$!
}
end_download() {
  wait "$download"
  download=
}

# Text and CORE's questions: from the hub, while the tokenizer trains on the first shards. An embedded world is written by its
# first reader.
start_download download

# Tokenizer: the vocabulary that the model reads and writes.
stage tok_train

# Compression compared with GPT-2 and GPT-4: fewer tokens make every later stage cheaper.
stage tok_eval

# Base model: learn to predict the next token. This stage takes nearly all the time.
end_download
# Conversations and benchmarks for the stages below.
start_download download_tasks
stage base_train

# Bits per byte on training and validation text, and samples.
stage base_loss

# CORE: tasks that need knowledge and understanding, scored relative to chance.
stage base_eval

end_download

# Midtraining: the format of conversations, choosing by letter, calling the calculator. All tokens are supervised.
stage mid_train

# The same questions after each of the following stages, to see what they gain.
stage chat_eval_mid

# Supervised fine-tuning (SFT): learn to answer. Only the assistant's tokens are supervised.
stage chat_sft
stage chat_eval_sft

# Reinforcement learning: sample several answers, reinforce the correct ones.
stage chat_rl
stage chat_eval_rl

# Report card: a section for each stage above, and the summary.
stage report
