#!/usr/bin/env bash
# An evening on a laptop, without a GPU, on real text: `bash runs/cpu.sh --data=FOLDER`, or a corpus of the hub by name. It
# takes what speedrun.sh takes, of which it is one scale; started again with the same arguments it goes on.
set -euo pipefail
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../speedrun.sh" --scale=cpu "$@"
