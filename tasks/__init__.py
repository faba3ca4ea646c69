"""Data sets and what is asked of them: one file each, one table of all (they come with the chat stages)."""
