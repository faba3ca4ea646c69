#!/usr/bin/env bash
echo "error: runs/train_h100_fast.sh has moved: run python -m tracks.recursion.phases --phase=fast, with the same flags" >&2
exit 2
