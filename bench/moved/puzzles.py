"""Moved to tracks.recursion.sudoku."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("bench.puzzles", "tracks.recursion.sudoku")
