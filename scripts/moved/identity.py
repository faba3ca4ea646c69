"""Moved to tracks.chatdata.identity."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.identity", "tracks.chatdata.identity")
