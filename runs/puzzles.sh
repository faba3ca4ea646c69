#!/usr/bin/env bash
# Train on a small Sudoku, which needs several steps of thought, and score 200 problems that share no board with training. Three arms
# for each seed: R recursion; P the same parameters without a loop, equal steps; W as P, for the same seconds. A table ends the run.
# No network is needed. Run the same command again to resume.
#   bash runs/puzzles.sh                                one layer of width 64, three seeds, half an hour on two cores
#   bash runs/puzzles.sh --steps=400 --depth=2 --width=128 --seeds=1 --tag=wide
# Other flags go to scripts.base_train, for all arms.
set -euo pipefail

seeds=3 steps=800 depth=1 width=64 tag=puzzles
own() { set_flag "$1" "seeds steps depth width"; }
set -- --data=world --vocab-size=300 "$@"
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

arm() { # name, seed, horizon, flags of the model
  local run="$tag-$1-$2"
  printf '\n== seed %s, arm %s\n' "$2" "$1"
  # Two steps on text make a model; the conversations of the Sudoku train it, prompts masked.
  train --tag="$run" --seed="$2" --depth="$depth" --width="$width" --head-dim=32 --max-seq-len=256 --window-pattern=L \
    --total-batch-size=4096 --num-iterations=2 --eval-every=-1 --sample-every=-1 "${@:4}"
  bash "$root/runs/launch.sh" chat_sft --tag="$run" --seed="$2" --source=base --mixture=Sudoku-4:1000 "$3" --init-lr-frac=1 \
    --warmup-steps=20 --eval-every=0 --eval-metrics-every=-1 --save-every=100
  "$python" -m scripts.chat_eval --tag="$run" --source=sft --tasks=Sudoku-4 --max-problems=200 --max-new-tokens=64
}
for seed in $(seq "$seeds"); do
  arm R "$seed" "--num-iterations=$steps" --recursion=aggressive
  arm P "$seed" "--num-iterations=$steps"
  seconds=$(found "$(ls "$base/chat_sft/$tag-R-$seed"/step_*/manifest.json | tail -n 1)" loop seconds)
  arm W "$seed" "--target-seconds=$seconds"
done

"$python" -m bench.puzzles "$tag"
