#!/usr/bin/env bash
# Tests and benchmarks that need a GPU, the most useful first; `bash bench/gpu.sh --help` lists the options.
# Without the environment of runs/setup.sh the Python of the machine is taken, with its own PyTorch.
set -euo pipefail
export CALLED_FROM=$PWD
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
if [ ! -x "$python" ]; then python=python3; fi
exec "$python" -m bench.gpu "$@"
