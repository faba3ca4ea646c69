"""Moved to tracks.golf.train."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.golf_train", "tracks.golf.train")
