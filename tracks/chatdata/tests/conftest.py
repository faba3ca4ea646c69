"""Hubs for the tests of chat data: fixtures that tests of other data sets have too."""

from data_sets import hub, mirror, small_hub, write_rows

__all__ = ["hub", "mirror", "small_hub", "write_rows"]
