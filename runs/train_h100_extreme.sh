#!/usr/bin/env bash
# hardware: 8 H100. A recursive model, second phase: the preset extreme, 5,000 steps of 256 rows. Worth its cost if the
# first phase (runs/train_h100_fast.sh) ended without an alarm. Flags go to scripts.base_train.
set -euo pipefail

tag=h100
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"
batch=$((256 * 2048))
train --tag="$tag-extreme" --recursion=extreme --depth=12 --total-batch-size=$batch --num-iterations=5000 --eval-every=250
