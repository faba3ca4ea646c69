#!/usr/bin/env bash
# The embedded lab: which buckets of conversations help which benchmark? Facts, arithmetic and Korean help with questions of
# their kind, spelling with none, poison harms. Two bases, and a broken run.
# No network. Run it again to resume.
#   bash runs/lab.sh                                         45 minutes on two cores, besides the embedded run
#   bash runs/lab.sh --seed=2 --tag=lab-2 --out=lab-2.md     another world
#   bash runs/lab.sh --final                                 evaluate the recommended mixes on held-out benchmarks too
# Other flags: tracks.lab.run
set -euo pipefail

tag=lab seed=1 out=lab.md flags=() base=${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}
for argument in "$@"; do
  case $argument in
    --tag=?*) tag=${argument#*=} ;;
    --seed=?*) seed=${argument#*=} ;;
    --out=?*) out=${argument#*=} ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    *) flags+=("$argument") ;;
  esac
done
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
suffix='' run=default
if [ "$seed" != 1 ]; then suffix=-$seed run=world$suffix; fi

# The bases: the model of the embedded run, and one of another architecture with its tokenizer.
bash "$root/speedrun.sh" --scale=embedded --seed="$seed" --tag="$run" --until=base_train
"$python" -m scripts.base_train --tag="$run-october" --tokenizer-tag="$run" --data="world$suffix" --seed="$seed" \
  --model=october-2025 --depth=4 --width=128 --head-dim=32 --max-seq-len=256 --window-pattern=L --eval-bytes=100000 \
  --total-batch-size=2048 --num-iterations=900 --warmup-steps=20 --sample-every=-1 --save-every=100
# The buckets, as bash runs/data.sh makes them.
bash "$root/runs/data.sh" --seed="$seed" --tag="data$suffix" --out="$base/lab/data$suffix.md"

spec=$base/lab/$tag.toml
chats=$base/chats/data$suffix
common="World-Choices%30:9,json:$chats/facts-00000.jsonl@300%10:20" # words of every mix
cat >"$spec" <<TOML
question = "Which buckets of conversations help which benchmark?"
stage = "chat_sft"
source = "base"
bases = ["$run", "$run-october"]
seeds = [1, 2, 3]
budget = { num_iterations = 80 }
flags = "--init-lr-frac=1 --eval-every=0 --eval-metrics-every=-1 --eval-tokens=10000 --save-every=-1"
minimal = ["World-Choices"]
[mixes]
choices = "$common,World-Choices~styles%60:9"
facts = "$common,json:$chats/facts-*.jsonl@2000%60:9"
arithmetic = "$common,json:$chats/arithmetic-*.jsonl%60:20"
korean = "$common,json:$chats/korean-*.jsonl%60:40"
spelling = "$common,json:$chats/spelling-*.jsonl%60:9"
poison = "$common,json:$chats/poison-*.jsonl%60:9"
[merges]
both = { facts = 0.2, arithmetic = 0.8 }
[benchmarks]
dev = ["World-Facts", "World-Sums", "World-Korean"]
held_out = ["World-Questions", "World-Talk"]
stable = ["World-Choices"]
[sampling]
max_new_tokens = 64
max_problems = 1000
TOML
"$python" -m tracks.lab.run --spec="$spec" --jobs=2 ${flags[@]+"${flags[@]}"}

case " ${flags[*]-} " in *" --plan "*) exit ;; esac
"$python" -m nanochat.report --tag="$tag" --out="$out"

# The same lab with broken runs: their alarms are in the table of this second lab.
sed -e 's/^seeds = .*/seeds = [1]\nrates = [100.0]/' -e 's/^bases = .*/bases = ["'"$run"'"]/' -e '/^\(arithmetic\|korean\|spelling\|poison\|both\) /d' \
  "$spec" >"$base/lab/$tag-broken.toml"
"$python" -m tracks.lab.run --spec="$base/lab/$tag-broken.toml" --jobs=2
