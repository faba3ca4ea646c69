#!/usr/bin/env bash
# Models at several depths for each FLOP budget: small ones see more tokens, large ones fewer. The best size for a budget
# has the lowest loss; the growth law for the best size gives the tokens per parameter. Run the same command again to
# resume: finished models are not trained again.
#   bash runs/scaling_laws.sh                                                         four budgets, about 7e19 FLOPs
#   bash runs/scaling_laws.sh --sweep=1e17:4,6,8 --sweep=3e17:6,8,10 --tag=small      your own budgets and depths
#   bash runs/scaling_laws.sh --data=FOLDER --out=FILE --vocab-size=N
# Other flags go to scripts.base_train.
set -euo pipefail

sweeps=() tag=scaling out=scaling_laws.md
own() { case $1 in --sweep=?*:?*) sweeps+=("${1#*=}") ;; *) return 1 ;; esac; }
source "$(dirname -- "${BASH_SOURCE[0]}")/series.sh"

# Around the sizes that 12 tokens a parameter would give, two on each side.
if [ ${#sweeps[@]} = 0 ]; then sweeps=(1e18:8,10,12,14 2.15e18:10,12,14,16 4.64e18:12,14,16,18 1e19:14,16,18,20); fi
for sweep in "${sweeps[@]}"; do
  flops=${sweep%%:*} depths=${sweep#*:}
  for depth in ${depths//,/ }; do
    printf '\n== %s FLOPs, depth %s\n' "$flops" "$depth"
    train --depth="$depth" --target-flops="$flops" --tag="$tag-$flops-d$depth"
  done
done

"$python" -m bench.scaling --kind=laws --tag="$tag" --prefix="$tag-"
"$python" -m nanochat.report --tag="$tag" --out="$out"
