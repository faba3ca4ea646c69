#!/usr/bin/env bash
echo "error: runs/recursion.sh has moved: run python -m tracks.recursion.run, with the same flags" >&2
exit 2
