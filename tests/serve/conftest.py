"""One server for all tests that do not end or overload it."""

import pytest

from bench.served import serving, write_model


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    """An engine in this process with the server's weights, which lie in `twin.base`."""
    base = tmp_path_factory.mktemp("serve") / "base"
    engine = write_model(base)
    engine.base = base
    return engine


@pytest.fixture(scope="session")
def server(twin):
    with serving(twin.base, "--slots=4") as server:
        yield server
