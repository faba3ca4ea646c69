#!/usr/bin/env bash
echo "error: runs/lab.sh has moved: run python -m tracks.lab.embedded, with the same flags" >&2
exit 2
