#!/usr/bin/env bash
# Chat data: buckets of conversations about the embedded world, with planted faults, through all filters into chats that are
# ready to be mixed, with a report card. No network. Run the same command again to resume.
#   bash runs/data.sh                     half a minute on two cores
#   bash runs/data.sh --rows=20000        more rows in a bucket
#   bash runs/data.sh --seed=2 --tag=two  another world
# --tag=NAME and --out=FILE as for the other series. Other flags go to tracks.chatdata.chats.
set -euo pipefail

tag=data out=data.md seed=1 rows=4000
own() { set_flag "$1" "seed rows"; }
ready() {
  if [ "$data" = auto ]; then data=world; if [ "$seed" != 1 ]; then data=world-$seed; fi; fi
  vocab_size=${vocab_size:-4096}
}
# $@: how Python is called
chats() {
  local raw=$base/world_buckets/$tag
  "$python" "$@" --tag="$tag" --tokenizer-tag="$tag" --languages=korean=ko \
    --sources="facts=json:$raw/facts.jsonl,arithmetic=World-Sums,korean=json:$raw/korean.jsonl,spelling=json:$raw/spelling.jsonl,poison=json:$raw/poison.jsonl,styles=World-Choices~styles,options=World-Choices~options:8" \
    --against=World-Facts,World-Sums ${flags[@]+"${flags[@]}"}
}
check() { chats -c 'from nanochat.config import run; from tracks.chatdata.chats import check; run(check)'; }
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

"$python" -m nanochat.world --seed="$seed"
"$python" -m bench.planted --seed="$seed" --buckets="$base/world_buckets/$tag" --rows="$rows"
chats -m tracks.chatdata.chats
if grep -l '"planted"' "$base/chats/$tag"/*.jsonl; then stop "planted rows are left in these files"; fi
"$python" -m nanochat.report --tag="$tag" --out="$out"
