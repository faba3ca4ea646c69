#!/usr/bin/env bash
# Make the committed report cards again, from the newest commit. `--check` says how far behind each card is, `--only=main,cpu` makes
# some of them. Run the same command again to resume.
set -euo pipefail
from=$PWD
case ${NANOCHAT_BASE_DIR:-} in '' | [/~]*) ;; *) export NANOCHAT_BASE_DIR="$from/$NANOCHAT_BASE_DIR" ;; esac
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
case " $* " in *" --check "* | *" --help "*) ;; *) bash runs/setup.sh ;; esac
exec .venv/bin/python -m bench.evidence "$@"
