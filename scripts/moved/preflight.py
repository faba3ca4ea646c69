"""Moved to tracks.scale.preflight."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.preflight", "tracks.scale.preflight")
