"""Moved to tracks.lab.merge."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.merge", "tracks.lab.merge")
