#!/usr/bin/env bash
# Write requirements.lock: dependencies with all extras but ray and trackio, pinned with hashes, for Linux, macOS and Windows and every
# supported Python. Run it after changing dependencies in pyproject.toml; `bash runs/lock.sh --upgrade` upgrades the packages.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PATH="$PATH:$PWD/.venv/bin"

# The file must not depend on the machine, so neither the index nor a link directory is written to it.
exec uv pip compile pyproject.toml --universal --python-version 3.10 --generate-hashes \
  --extra=serve --extra=export --extra=bases --extra=teacher --extra=lab --extra=dev --no-emit-package=nanochat-rustbpe \
  --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "bash runs/lock.sh" \
  --quiet --output-file requirements.lock "$@"
