#!/usr/bin/env bash
# Golf: the best model in N bytes and T seconds. Trains, packs and scores an entry with several seeds, and baselines with the
# same clock and bytes, and compares them. Run the same command again to resume.
#   bash runs/golf.sh                             200 kB and a minute on two cores, three seeds; no network
#   bash runs/golf.sh --ablate --seeds=1          also the entry without each of its tricks
#   bash runs/golf.sh --scale=cpu --data=FOLDER   1 MB and ten minutes
#   bash runs/golf.sh --scale=1gpu                16 MB and ten minutes on a GPU; the default where there is one
#   bash runs/golf.sh --scale=1gpu --entry=seed   the entry that the track comes from
# --tag=NAME, --data=TEXT and --out=FILE as for the other series. --unsafe-exec scores without a sandbox where there can be none.
# Other flags go to tracks.golf.train, and --plan to tracks.golf.pack, for the entry and the baselines alike: --qat and --plan
# change the baselines too.
set -euo pipefail

entry=golf scale='' seeds=3 ablate='' unsafe='' tag='' out=golf.md
own() {
  case $1 in
    --ablate) ablate=1 ;;
    --unsafe-exec) unsafe=$1 ;;
    --without=*) stop "--without is a flag of tracks.golf.entries: --ablate leaves out each trick" ;;
    *) set_flag "$1" "scale entry seeds" ;;
  esac
}
set -f # a word of a table is no pattern of files,
IFS=$'\n' # and may hold spaces
table() { "$python" -m tracks.golf.entries "--scale=$scale" ${flags[@]+"${flags[@]}"} "$@"; }
ready() {
  local gpu
  gpu=$("$python" -c 'import torch; print(torch.cuda.is_available())')
  if [ -z "$scale" ] && [ "$gpu" = True ]; then scale=1gpu; fi
  scale=${scale:-embedded}
  if [ "$scale" = 1gpu ] && [ "$gpu" = False ]; then stop "--scale=1gpu needs a GPU: take --scale=embedded or cpu"; fi
  baselines=$(table --entry="$entry" baselines)
  vocab_size=${vocab_size:-$(table --entry="$entry" vocabulary)}
  if [ "$data" = auto ]; then data=$(table --entry="$entry" data); fi
  tag=${tag:-$entry-$scale}
}
check() {
  local row
  row=$(table --entry="$entry" flags)
  "$python" -m tracks.golf.eval --check="$scale" $unsafe
  "$python" -m tracks.golf.train --dry-run $row --data="$data"
}
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

stride=-1
run_entry() { # name in the tag, seed, entry, trick to leave out
  local run="$tag-$1-$2" row plan settings
  row=$(table --entry="$3" --without="${4:-}" flags)
  plan=$(table --entry="$3" --without="${4:-}" plan)
  settings=$(printf '%s\n' "$scale" "$data" "$row" "$plan")
  if [ -f "$base/golf_eval/$run/settings" ]; then
    if [ "$(cat "$base/golf_eval/$run/settings")" != "$settings" ]; then
      stop "$run was scored with other settings: take another --tag"
    fi
    return
  fi
  printf '\n== %s, seed %s\n' "$1" "$2"
  "$python" -m tracks.golf.train $row --tag="$run" --seed="$2" --tokenizer-tag="$tag" --data="$data"
  "$python" -m tracks.golf.pack --scale="$scale" --tag="$run" --plan="$plan"
  "$python" -m tracks.golf.eval --tag="$run" --stride="$stride" $unsafe
  printf '%s\n' "$settings" >"$base/golf_eval/$run/settings"
}
metric() { found "$base/golf_eval/$1/outcome.json" metrics "$2"; } # run, name of a metric of its score
# The entry's first run chooses the stride by its speed. All others take the same one, or the scores could not be compared.
run_entry "$entry" 1 "$entry"
stride=$(metric "$tag-$entry-1" Stride)
for baseline in $baselines; do run_entry "$baseline" 1 "$baseline"; done
# The best baseline of the first seed has all seeds.
"$python" -m tracks.golf.eval --tag="$tag" --entries="$entry" --seeds=1
best=$(metric "$tag" Baseline)
tricks=''
if [ -n "$ablate" ]; then tricks=$(table --entry="$entry" tricks); fi
entries=$entry
for trick in $tricks; do entries+=",$entry-without-${trick// /-}"; done
for seed in $(seq "$seeds"); do
  run_entry "$entry" "$seed" "$entry"
  if [ "$seed" != 1 ]; then run_entry "$best" "$seed" "$best"; fi
  for trick in $tricks; do run_entry "$entry-without-${trick// /-}" "$seed" "$entry" "$trick"; done
done

"$python" -m tracks.golf.eval --tag="$tag" --entries="$entries" --seeds="$seeds"
"$python" -m nanochat.report --tag="$tag" --out="$out"
