"""Moved to tracks.chatdata.planted."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("bench.planted", "tracks.chatdata.planted")
