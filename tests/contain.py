"""The mark of tests that run programs in the sandbox."""

import pytest

from nanochat.evals import sandbox

NEEDS_SANDBOX = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")
