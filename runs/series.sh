# Common part of the scripts that train several runs with one tokenizer. They set the defaults in `tag` and `out`. They may
# define `own`, which handles their own flags, `ready`, called before anything is trained, and `check`, which finds a mistake in a flag.

stop() {
  echo "error: $1" >&2
  exit 2
}
# Sets the variable of a flag if its name is among `$2`: vocab_size for --vocab-size=N.
set_flag() {
  local name=${1%%=*}
  name=${name#--} name=${name//-/_}
  [[ $1 = --*=?* && " $2 " = *" $name "* ]] && printf -v "$name" %s "${1#*=}"
}
# The number or text under some keys of a JSON file.
found() {
  "$python" -c 'import functools, json, sys
print(functools.reduce(lambda value, key: value[key], sys.argv[2:], json.load(open(sys.argv[1]))))' "$@"
}

if ! declare -F own >/dev/null; then own() { return 1; }; fi
data=auto vocab_size='' flags=() base=${NANOCHAT_BASE_DIR:-$HOME/.cache/nanochat}
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    *) set_flag "$argument" "tag data out vocab_size" || own "$argument" || flags+=("$argument") ;;
  esac
done
case ${seeds=1} in *[!0-9]* | 0 | '') stop "--seeds=$seeds has to be a number from 1" ;; esac
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
bash "$root/runs/setup.sh"

if declare -F ready >/dev/null; then ready; fi
vocab_size=${vocab_size:-65536}

# A flag that the script does not know is found before the tokenizer is trained.
if ! declare -F check >/dev/null; then
  check() { "$python" -m scripts.base_train --dry-run --data="$data" ${flags[@]+"${flags[@]}"}; }
fi
check >/dev/null

# One tokenizer for all runs.
made=$base/tok_train/$tag/outcome.json
if [ ! -f "$made" ]; then
  "$python" -m scripts.tok_train --vocab-size="$vocab_size" --max-chars=2e9 --data="$data" --tag="$tag"
else
  before=$(found "$made" config vocab_size)
  if [ "$before" != "$vocab_size" ]; then
    stop "the vocabulary of --tag=$tag has --vocab-size=$before, not $vocab_size: take another --tag"
  fi
fi

# base_train leaves a finished run alone and refuses one with other flags. Ctrl-C ends the whole series: base_train saves
# and exits with status 0, so the signal itself has to end this script.
trap 'exit 130' INT
train() { bash "$root/runs/launch.sh" base_train "$@" --tokenizer-tag="$tag" --data="$data" ${flags[@]+"${flags[@]}"}; }
