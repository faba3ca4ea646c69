#!/usr/bin/env bash
# Everything that a machine with a GPU has to show, in order of worth; `bash bench/gpu.sh --help` lists the options.
# Without the environment of runs/setup.sh the Python of the machine is taken, with its own PyTorch.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
if [ ! -x "$python" ]; then python=python3; fi
exec "$python" -m bench.gpu "$@"
