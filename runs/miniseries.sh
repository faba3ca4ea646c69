#!/usr/bin/env bash
# Models at several depths, each trained with tokens in proportion to the size: a table, and bits per byte against FLOPs.
# Does a change help at every size? Run the same command again to resume: finished models are not trained again.
#   bash runs/miniseries.sh                                       depths 8 to 20
#   bash runs/miniseries.sh --depths=8,10,12 --tag=changed        other depths, beside the first
#   bash runs/miniseries.sh --data=FOLDER --out=FILE --vocab-size=N
# Other flags go to scripts.base_train.
set -euo pipefail

depths=8,10,12,14,16,18,20 tag=miniseries out=miniseries.md
own() { set_flag "$1" depths; }
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

for depth in ${depths//,/ }; do
  printf '\n== depth %s\n' "$depth"
  train --depth="$depth" --tag="$tag-d$depth"
done

"$python" -m bench.scaling --kind=miniseries --tag="$tag" --prefix="$tag-d"
"$python" -m nanochat.report --tag="$tag" --out="$out"
