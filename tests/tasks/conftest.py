"""Hubs for the tests of tasks: fixtures that tests of other data sets have too."""

from data_sets import base, hub, mirror, small_hub, write_rows

__all__ = ["base", "hub", "mirror", "small_hub", "write_rows"]
