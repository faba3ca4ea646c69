"""Moved to tracks.golf.eval."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.golf_eval", "tracks.golf.eval")
