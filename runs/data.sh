#!/usr/bin/env bash
echo "error: runs/data.sh has moved: run python -m tracks.chatdata.run, with the same flags" >&2
exit 2
