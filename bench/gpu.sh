#!/usr/bin/env bash
# Tests and benchmarks that need a GPU, the most useful first; `bash bench/gpu.sh --help` lists the options.
# Without the environment of runs/setup.sh the Python of the machine is taken, with its own PyTorch.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
if [ ! -x "$python" ]; then python=python3; fi
PYTHONPATH=$root exec "$python" -m bench.gpu "$@"
