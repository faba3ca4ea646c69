#!/usr/bin/env bash
# hardware: 8 H100. A recursive model, first phase: does refinement work? Depth 12, the preset aggressive, 1,000 steps of 512
# rows. Run the same command again to resume; then runs/train_h100_extreme.sh. Nothing here was measured on a GPU yet.
#   bash runs/train_h100_fast.sh --depth=24 --width=1024                 a larger model
#   bash runs/train_h100_fast.sh --matrix-lr=0.001 --embedding-lr=0.01   the lower rates that others recommend
# Other flags go to scripts.base_train.
set -euo pipefail

tag=h100
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"
batch=$((512 * 2048))
train --tag="$tag-fast" --recursion=aggressive --depth=12 --total-batch-size=$batch --num-iterations=1000 --eval-every=50
