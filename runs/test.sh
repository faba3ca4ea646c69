#!/usr/bin/env bash
# All checks: setup, formatting, lint, types, Rust tests, Python tests. They all run even if an earlier one fails; any failure sets
# the exit status, and the last line has the counts of all tests.
#   bash runs/test.sh                everything: trunk, then tracks
#   bash runs/test.sh trunk          the trunk's tests, in a copy of the tree without any track
#   bash runs/test.sh tracks         the tracks' tests, and for each track what is left without it
#   bash runs/test.sh tracks/golf    those of one track
#   bash runs/test.sh -k tokenizer   other words go to pytest, which runs in the tree
# Words after the first go to pytest too: `bash runs/test.sh trunk -k tokenizer`. `bash runs/test.sh tracks/test_deletion.py
# -m slow` runs all of the trunk's tests without each track in turn, in about an hour on two cores.
set -uo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PATH="$PWD/.venv/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

bash runs/setup.sh || exit 1
failed=()
ruff format --check . || failed+=("ruff format (fix with: .venv/bin/ruff format)")
ruff check --quiet . || failed+=("ruff check")
ty check --quiet --error-on-warning --output-format=concise || failed+=("ty check")
cargo test --quiet --manifest-path rustbpe/Cargo.toml || failed+=("cargo test")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
colors=$(if [ -t 1 ]; then printf -- --color=yes; else printf -- --color=auto; fi)
# Bytecode is kept, also where Python is told to keep none, as in many containers: else each of thousands of processes compiles
# what it imports.
export PYTHONDONTWRITEBYTECODE=
# More threads would only wait for each other.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# pytest in a folder. pytest-timeout ends a test that hangs. pytest-xdist runs one file at a time on each core, in the order set
# by conftest.py.
run() {
  local folder=$1
  shift
  (cd "$folder" && PATH="$PWD/.venv/bin:$PATH" exec python -m pytest -n auto --dist=loadfile --no-loadscope-reorder "$colors" "$@") |
    tee "$work/output" || failed+=("pytest")
  tail -n 1 "$work/output" >>"$work/counts"
}

# The trunk's tests pass without any track.
trunk() {
  python tests/copies.py "$work/copy/nanochat" || exit 1
  run "$work/copy/nanochat" tests "$@"
}

# In the tree: tests of all tracks, and those of the trunk's tests that look at files of tracks.
tracks() { run . tracks tests/test_interface.py tests/test_registry.py tests/test_rules.py tests/test_setup.py "$@"; }

suite=${1:-}
case $suite in
  '')
    trunk
    tracks
    ;;
  trunk | tracks)
    shift
    "$suite" "$@"
    ;;
  *)
    if [[ $suite == tracks/* && -e ${suite%/}/__init__.py ]]; then
      shift
      name=$(basename -- "$suite")
      run . "tracks/$name" tracks/test_pages.py tracks/test_deletion.py -k "$name" "$@"
    else
      run . "$@"
    fi
    ;;
esac

for name in "${failed[@]+"${failed[@]}"}"; do printf 'test: FAILED %s\n' "$name"; done
count() { grep -oE "[0-9]+ ($1)" "$work/counts" | awk '{ sum += $1 } END { print sum + 0 }'; }
printf '%s passed, %s failed, %s skipped\n' "$(count passed)" "$(count 'failed|error|errors')" "$(count skipped)"
exit $((${#failed[@]} > 0))
