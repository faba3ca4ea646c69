"""Moved to tracks.golf.pack."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.golf_pack", "tracks.golf.pack")
