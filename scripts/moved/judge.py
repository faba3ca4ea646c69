"""Moved to tracks.preferences.judge."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.judge", "tracks.preferences.judge")
