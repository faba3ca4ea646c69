#!/usr/bin/env bash
# An evening on a laptop without a GPU, on real text: `bash runs/cpu.sh --data=FOLDER`, or a named corpus from the hub.
# This is speedrun.sh at the scale cpu, with the same flags; run the same command again to resume.
set -euo pipefail
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../speedrun.sh" --scale=cpu "$@"
