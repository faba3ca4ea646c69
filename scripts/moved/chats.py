"""Moved to tracks.chatdata.chats."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.chats", "tracks.chatdata.chats")
