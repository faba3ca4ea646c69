#!/usr/bin/env bash
# Golf: the best model in N bytes and T seconds. Trains, packs and scores an entry with several seeds, and baselines with the
# same clock and bytes, and compares them. Run the same command again to resume.
#   bash runs/golf.sh                             200 kB and a minute on two cores, three seeds; no network
#   bash runs/golf.sh --ablate --seeds=1          also the entry without each of its tricks
#   bash runs/golf.sh --scale=cpu --data=FOLDER   1 MB and ten minutes
#   bash runs/golf.sh --scale=1gpu                16 MB and ten minutes on a GPU
# Other flags go to scripts.base_train, for all entries.
set -euo pipefail

scale=embedded entry=golf seeds=3 ablate='' data='' tag='' out=golf.md flags=()
for argument in "$@"; do
  case $argument in
    --scale=?*) scale=${argument#*=} ;;
    --entry=?*) entry=${argument#*=} ;;
    --seeds=?*) seeds=${argument#*=} ;;
    --data=?*) data=${argument#*=} ;;
    --tag=?*) tag=${argument#*=} ;;
    --out=?*) out=${argument#*=} ;;
    --ablate) ablate=1 ;;
    -h | --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
      exit
      ;;
    *) flags+=("$argument") ;;
  esac
done
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
bash "$root/runs/setup.sh"
tag=${tag:-golf-$scale}
IFS=$'\n' # a line of a table is a word, whatever is in it
base=${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}
if [ -n "$data" ]; then flags+=("--data=$data"); fi

# The table has the entries; a mistake in a flag is found here.
table() { "$python" -m nanochat.lab.golf "--scale=$scale" "$@"; }
baselines=$(table --entry="$entry" baselines)
row=$(table --entry="$entry" ${flags[@]+"${flags[@]}"} flags)
"$python" -m scripts.base_train --dry-run $row >/dev/null
if [ ! -f "$base/tok_train/$tag/outcome.json" ]; then
  "$python" -m scripts.tok_train --vocab-size="$(table --entry="$entry" vocabulary)" --max-chars=2e9 --data="${data:-$(table --entry="$entry" flags | sed -n 's/^--data=//p')}" --tag="$tag"
fi

trap 'exit 130' INT
play() { # name in the tag, seed, entry, trick to leave out
  local run="$tag-$1-$2"
  if [ -f "$base/golf_eval/$run/outcome.json" ]; then return; fi
  printf '\n== %s, seed %s\n' "$1" "$2"
  row=$(table --entry="$3" --without="${4:-}" ${flags[@]+"${flags[@]}"} flags)
  "$python" -m scripts.base_train $row --tag="$run" --seed="$2" --tokenizer-tag="$tag"
  "$python" -m scripts.golf_pack --scale="$scale" --tag="$run" --plan="$(table --entry="$3" plan)"
  "$python" -m scripts.golf_eval --tag="$run"
}
for baseline in $baselines; do play "$baseline" 1 "$baseline"; done
best=$("$python" -m scripts.golf_eval --best --scale="$scale" --tag="$tag")
entries=$entry
for seed in $(seq "$seeds"); do
  play "$entry" "$seed" "$entry"
  if [ "$seed" != 1 ]; then play "$best" "$seed" "$best"; fi
  if [ -n "$ablate" ]; then
    while read -r trick; do
      play "$entry-without-${trick// /-}" "$seed" "$entry" "$trick"
      if [ "$seed" = 1 ]; then entries+=",$entry-without-${trick// /-}"; fi
    done < <(table --entry="$entry" tricks)
  fi
done

"$python" -m scripts.golf_eval --tag="$tag" --scale="$scale" --entries="$entries" --seeds="$seeds"
"$python" -m nanochat.report --tag="$tag" --out="$out"
