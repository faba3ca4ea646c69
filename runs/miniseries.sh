#!/usr/bin/env bash
# Models of several depths, each trained for as long as its size wants: one table, and bits per byte against FLOPs. Does a
# change help at every size, or at the one it was tried on? Started again it goes on: what has ended is not trained again.
#   bash runs/miniseries.sh                                       depths 8 to 20
#   bash runs/miniseries.sh --depths=8,10,12 --tag=changed        others, beside the first
#   bash runs/miniseries.sh --data=FOLDER --out=FILE --vocab-size=N
# Any other flag is scripts.base_train's.
set -euo pipefail

depths=8,10,12,14,16,18,20 tag=miniseries data=auto out=miniseries.md words=65536 flags=()
for argument in "$@"; do
  case $argument in
    --depths=?*) depths=${argument#*=} ;;
    --tag=?*) tag=${argument#*=} ;;
    --data=?*) data=${argument#*=} ;;
    --out=?*) out=${argument#*=} ;;
    --vocab-size=?*) words=${argument#*=} ;;
    *) flags+=("$argument") ;;
  esac
done
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
base=${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}
bash "$root/runs/setup.sh"

# One vocabulary for all of them.
if [ ! -f "$base/tok_train/$tag/outcome.json" ]; then
  "$root/.venv/bin/python" -m scripts.tok_train --vocab-size="$words" --max-chars=2e9 --data="$data" --tag="$tag"
fi

# A run that has ended says so and is left alone; one with other flags is refused. Ctrl-C ends them all: a run that it
# stops has saved, and ends well.
trap 'exit 130' INT
for depth in ${depths//,/ }; do
  printf '\n== depth %s\n' "$depth"
  bash "$root/runs/launch.sh" base_train --depth="$depth" --tag="$tag-d$depth" --tokenizer-tag="$tag" --data="$data" \
    ${flags[@]+"${flags[@]}"}
done

"$root/.venv/bin/python" -m scripts.scaling --kind=miniseries --prefix="$tag-d" --out="$out"
