#!/usr/bin/env bash
echo "error: runs/puzzles.sh has moved: run python -m tracks.recursion.sudoku, with the same flags" >&2
exit 2
