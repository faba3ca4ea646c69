"""What several tests of public models need."""

from pathlib import Path

import pytest

from tracks.bases.tests.public_models import save_folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in three files and an index."""
    folder = tmp_path_factory.mktemp("model") / "llama"
    save_folder("llama", folder, shard="100KB")
    return folder
