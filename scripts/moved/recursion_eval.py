"""Moved to tracks.recursion.eval."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.recursion_eval", "tracks.recursion.eval")
