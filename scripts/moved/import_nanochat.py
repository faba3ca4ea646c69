"""Moved to tracks.export.import_nanochat."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.import_nanochat", "tracks.export.import_nanochat")
