#!/usr/bin/env bash
# All checks: setup, formatting, lint, Rust tests, Python tests. They all run even if an earlier one fails; any failure sets
# the exit status. Arguments are passed to pytest: `bash runs/test.sh -k tokenizer`.
set -uo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PATH="$PWD/.venv/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

bash runs/setup.sh || exit 1
failed=()
ruff format --check . || failed+=("ruff format (fix with: .venv/bin/ruff format)")
ruff check --quiet . || failed+=("ruff check")
cargo test --quiet --manifest-path rustbpe/Cargo.toml || failed+=("cargo test")

# Before pytest, so that pytest's closing line stays last.
for name in "${failed[@]+"${failed[@]}"}"; do printf 'test: FAILED %s\n' "$name"; done
# pytest-timeout ends a test that hangs. pytest-xdist runs one file at a time on each core, in the order that
# conftest.py sets; more threads would only wait for each other.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python -m pytest -n auto --dist=loadfile --no-loadscope-reorder "$@" || exit 1
exit $((${#failed[@]} > 0))
