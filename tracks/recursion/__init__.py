"""Recursion: models that use their layers several times, and a puzzle that needs it."""
