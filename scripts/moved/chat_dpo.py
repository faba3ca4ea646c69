"""Moved to tracks.preferences.train."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.chat_dpo", "tracks.preferences.train")
