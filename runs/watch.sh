#!/usr/bin/env bash
# The curve of the stage that trains, in this terminal: `bash runs/watch.sh [--tag=NAME] [--stage=NAME] [--once]`.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/.venv/bin/python" -m scripts.watch "$@"
