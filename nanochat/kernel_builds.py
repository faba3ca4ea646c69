"""Builds from the kernels hub: downloaded once, and then found without a network."""

from types import ModuleType

from nanochat.paths import base_dir, read_json, write_json

SERVER_TIMEOUT = 3.0  # seconds


def hub_kernel(repo: str, version: int) -> ModuleType:
    """Return the module of a kernel, from the newest build that was downloaded for this version, or by a download.

    The package alone asks the hub at each load who published a kernel and which versions there are, also for what is on
    this machine. Here a file remembers the commit; the builds themselves stay in the hub's cache.
    """
    from huggingface_hub import constants
    from kernels import get_local_kernel, install_kernel

    note = base_dir() / "kernels" / f"{repo.replace('/', '--')}-{version}.json"
    if note.exists():
        commit = read_json(note)["commit"]
        try:
            # Looks for a build for this PyTorch. Its publisher was asked for when it was downloaded.
            return get_local_kernel(
                install_kernel(repo, revision=commit, local_files_only=True, trust_remote_code=[repo])
            )
        except FileNotFoundError:
            pass  # the cache was emptied, or PyTorch is another
    if constants.HF_HUB_OFFLINE or not _is_reachable(constants.ENDPOINT):
        raise FileNotFoundError(
            f"no build of {repo} for this PyTorch is here, and {constants.ENDPOINT} cannot be reached"
        )
    place = install_kernel(repo, version=version)
    module = get_local_kernel(place)
    write_json(note, {"commit": place.parent.parent.name})  # snapshots/COMMIT/build/VARIANT
    return module


def _is_reachable(server: str) -> bool:
    """Return True if a server answers; without this question the package blames the trust in the publisher."""
    from huggingface_hub import get_session

    try:
        get_session().head(server, timeout=SERVER_TIMEOUT)
    # The exceptions depend on the library's version.
    except Exception:
        return False
    return True
