#!/usr/bin/env bash
# Compare recursion with its compute: five arms on the same batches, a table, and with several seeds a verdict. R recursion;
# P the same parameters without a loop; F as many FLOPs per token in more layers; W as P, for the same seconds; L as many
# applications on one state with the loss at the end alone. No network is needed. Run the same command again to resume.
#   bash runs/recursion.sh                                one seed, 25 minutes on two cores
#   bash runs/recursion.sh --seeds=3                      with the verdict, 75 minutes
#   bash runs/recursion.sh --preset=moderate --steps=600 --depth=4 --width=256 --tag=larger --data=FOLDER --out=FILE
# Flags of the group recursion (--loops=3) go to scripts.base_train for R alone, other flags for all arms.
set -euo pipefail

seeds=1 preset=aggressive steps=300 depth=2 width=128 tag=recursion out=recursion.md recursion=()
own() {
  case $1 in
    --preset=off) stop "--preset=off is no recursion: take moderate, aggressive or extreme" ;;
    --supervision=?* | --loops=?* | --passes=?* | --detached=?* | --supervision-base=?* | --improvement-reward=?*)
      recursion+=("$1") ;;
    --seed=* | --recursion=* | --model=* | --num-iterations=* | --target-seconds=*)
      stop "${1%%=*} differs between arms: give --seeds, --preset or --steps" ;;
    *) set_flag "$1" "seeds preset steps depth width" ;;
  esac
}
set -- --data=world --vocab-size=1024 "$@"
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

flags=(
  --width="$width" --head-dim=32 --max-seq-len=256 --window-pattern=L --total-batch-size=2048 --warmup-steps=20
  --eval-every=50 --eval-bytes=100000 --sample-every=-1 --save-every=50 ${flags[@]+"${flags[@]}"}
)
recursion=(--recursion="$preset" ${recursion[@]+"${recursion[@]}"})
# The expression `$1` of the plan p for the other flags.
planned() {
  local plan
  plan=$("$python" -m scripts.base_train --dry-run --json --data="$data" --tokenizer-tag="$tag" "${flags[@]}" "${@:2}") || exit
  "$python" -c "import json, sys; p = json.loads(sys.argv[1])['plan']; m = p['model']; print($1)" "$plan"
}
flops="p['flops_per_token']"

# Each layer of a plain model costs the same.
recursive=$(planned "$flops" --depth="$depth" "${recursion[@]}")
plain=$(planned "$flops" --depth="$depth")
deeper=$(planned "$flops" --depth=$((depth + 2)))
deep=$((depth + (2 * (recursive - plain) + (deeper - plain) / 2) / (deeper - plain)))
sweeps=$(planned "m['supervision'] * m['passes'] * (m['loops'] + 1)" --depth="$depth" "${recursion[@]}")

arm() { # name, seed, flags
  printf '\n== seed %s, arm %s\n' "$2" "$1"
  train --tag="$tag-$1-$2" --seed="$2" "${@:3}"
}
for seed in $(seq "$seeds"); do
  arm R "$seed" --depth="$depth" --num-iterations="$steps" "${recursion[@]}"
  arm P "$seed" --depth="$depth" --num-iterations="$steps"
  arm F "$seed" --depth="$deep" --num-iterations="$steps"
  arm L "$seed" --depth="$depth" --num-iterations="$steps" --model=reference,sweeps="$sweeps"
  seconds=$(found "$(ls "$base/base_train/$tag-R-$seed"/step_*/manifest.json | tail -n 1)" loop seconds)
  arm W "$seed" --depth="$depth" --target-seconds="$seconds"
done

"$python" -m tracks.recursion.eval --tag="$tag" --seeds="$seeds"
"$python" -m nanochat.report --tag="$tag" --out="$out"
