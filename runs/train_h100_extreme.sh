#!/usr/bin/env bash
echo "error: runs/train_h100_extreme.sh has moved: run python -m tracks.recursion.phases --phase=extreme, with the same flags" >&2
exit 2
