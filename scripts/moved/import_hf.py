"""Moved to tracks.export.import_hf."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.import_hf", "tracks.export.import_hf")
