"""Builds from the kernels hub: downloaded once, and then found without a network."""

from types import ModuleType

from nanochat.log import print0
from nanochat.paths import write_text

SERVER_TIMEOUT = 3.0  # seconds


def hub_kernel(repo: str, version: int) -> ModuleType:
    """Return the module of a kernel: the build for this PyTorch in the hub's cache, or else a download.

    The package alone asks the hub at each load who has published a kernel and which versions there are, also for what
    is on this machine.
    """
    from huggingface_hub import constants
    from kernels import get_local_kernel, install_kernel

    try:
        # Its publisher was asked for when it was downloaded.
        place = install_kernel(repo, version=version, local_files_only=True, trust_remote_code=[repo])
    except (OSError, ValueError):
        pass  # none is here, or none for this PyTorch
    else:
        try:
            return get_local_kernel(place)
        # It is another program, of which a part may be missing or damaged: anything can happen.
        except Exception as error:
            print0(f"kernels: {place} cannot be loaded ({type(error).__name__}: {error}), and is downloaded again")
    if constants.HF_HUB_OFFLINE or not _is_reachable(constants.ENDPOINT):
        raise FileNotFoundError(
            f"no build of {repo} for this PyTorch is here, and {constants.ENDPOINT} cannot be reached"
        )
    place = install_kernel(repo, version=version)
    # REPOSITORY/snapshots/COMMIT/build/VARIANT. The cache knows a version by a file that the package reads and never
    # writes.
    commit = place.parents[1].name
    write_text(place.parents[3] / "refs" / f"v{version}", commit)
    return get_local_kernel(place)


def _is_reachable(server: str) -> bool:
    """Return True if a server answers; without this question the package blames the trust in the publisher."""
    from huggingface_hub import get_session

    try:
        get_session().head(server, timeout=SERVER_TIMEOUT)
    # The exceptions depend on the library's version.
    except Exception:
        return False
    return True
