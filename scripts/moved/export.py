"""Moved to tracks.export.export."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.export", "tracks.export.export")
