"""Moved to tracks.chatdata.teach."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.teach", "tracks.chatdata.teach")
