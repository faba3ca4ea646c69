#!/usr/bin/env bash
# An evening on a laptop without a GPU, on real text: `bash runs/cpu.sh --data=FOLDER`, or a corpus of the hub by name. Takes
# the flags of speedrun.sh, as one of its scales; run it again with the same arguments to resume.
set -euo pipefail
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../speedrun.sh" --scale=cpu "$@"
