# What the series of runs have in common: sourced by them, with `tag` and `out` as they are unless given, and `own`, which
# takes a flag that is theirs alone.

data=auto words=65536 flags=()
for argument in "$@"; do
  case $argument in
    --tag=?*) tag=${argument#*=} ;;
    --data=?*) data=${argument#*=} ;;
    --out=?*) out=${argument#*=} ;;
    --vocab-size=?*) words=${argument#*=} ;;
    *) own "$argument" || flags+=("$argument") ;;
  esac
done
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
bash "$root/runs/setup.sh"

# One vocabulary for all of them.
made=${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}/tok_train/$tag/outcome.json
if [ ! -f "$made" ]; then
  "$python" -m scripts.tok_train --vocab-size="$words" --max-chars=2e9 --data="$data" --tag="$tag"
else
  before=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["config"]["vocab_size"])' "$made")
  if [ "$before" != "$words" ]; then
    echo "error: the vocabulary of --tag=$tag is of --vocab-size=$before, not $words: take another --tag" >&2
    exit 2
  fi
fi

# A run that has ended says so and is left alone; one with other flags is refused. Ctrl-C ends them all: a run that it
# stops has saved, and ends well.
trap 'exit 130' INT
train() { bash "$root/runs/launch.sh" base_train "$@" --tokenizer-tag="$tag" --data="$data" ${flags[@]+"${flags[@]}"}; }
