#!/usr/bin/env bash
# hardware: 8 H100. A recursive model, second phase: the preset extreme, 5,000 steps of 256 rows. It starts only if the first
# phase (runs/train_h100_fast.sh) meets four criteria: exits in order, refinement, gradient norms, a falling loss.
#   bash runs/train_h100_extreme.sh
#   bash runs/train_h100_extreme.sh --anyway                                start whatever the first phase gave
#   bash runs/train_h100_extreme.sh --depth=24 --width=1024                 a larger model
# Other flags go to scripts.base_train.
set -euo pipefail

tag=h100 anyway=
own() { case $1 in --anyway) anyway=1 ;; *) return 1 ;; esac; }
# Called before anything is trained.
ready() {
  if [ -z "$anyway" ] && ! "$python" -m scripts.recursion_eval --check --tag="$tag-fast"; then
    echo "--anyway starts this phase in any case" >&2
    exit 2
  fi
}
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"
batch=$((256 * 2048))
train --tag="$tag-extreme" --recursion=extreme --depth=12 --total-batch-size=$batch --num-iterations=5000 --eval-every=250
