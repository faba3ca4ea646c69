"""Moved to tracks.scale.simulate."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("bench.scale", "tracks.scale.simulate")
