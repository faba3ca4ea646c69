"""Moved to bench.scaling."""

from nanochat.config import refuse_moved

if __name__ == "__main__":
    refuse_moved("scripts.scaling", "bench.scaling")
