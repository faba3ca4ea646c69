#!/usr/bin/env bash
# Run a script from scripts/ with one process for each GPU, or one on the CPU:
#   bash runs/launch.sh base_train --depth=8
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
name=$1
shift
if [ "$gpus" -gt 1 ]; then
  exec "$python" -m torch.distributed.run --standalone --nproc_per_node="$gpus" -m "scripts.$name" "$@"
fi
exec "$python" -m "scripts.$name" "$@"
