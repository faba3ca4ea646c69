#!/usr/bin/env bash
# Writes requirements.lock: every dependency with all extras, pinned with hashes, for Linux, macOS and Windows and every
# Python we support. Run it after a change of dependencies in pyproject.toml; `bash runs/lock.sh --upgrade` takes newer versions.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PATH="$PATH:$PWD/.venv/bin"

# No index and no link directory is written down: the file must not depend on where it was made.
exec uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras --generate-hashes \
  --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "bash runs/lock.sh" \
  --quiet --output-file requirements.lock "$@"
