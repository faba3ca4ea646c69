"""Moved to tracks.lab.run."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.lab", "tracks.lab.run")
