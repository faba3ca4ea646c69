"""Tests of tracks have the fixtures of the trunk's tests."""

from conftest import *  # noqa: F403
