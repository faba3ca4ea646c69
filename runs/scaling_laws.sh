#!/usr/bin/env bash
# python -m scripts.scaling_laws in the environment of runs/setup.sh, with the same flags: --help lists them.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/runs/setup.sh"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/.venv/bin/python" -m scripts.scaling_laws "$@"
