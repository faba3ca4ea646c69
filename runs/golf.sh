#!/usr/bin/env bash
echo "error: runs/golf.sh has moved: run python -m tracks.golf.run, with the same flags" >&2
exit 2
