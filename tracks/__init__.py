"""Tracks: each folder is something that one may want beside the trunk, and can be deleted. Its README says what for.

A track imports the trunk; the trunk knows a track by the names in nanochat/registry.py alone.
"""
