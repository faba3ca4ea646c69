"""A build of the kernels hub: the real package loads it, from a cache as the hub's; the download is planted."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from nanochat import kernel_builds
from nanochat.kernel_builds import hub_kernel
from nanochat.paths import write_json, write_text


def builds_in(folder: Path) -> Path:
    """Builds as in the cache of the kernels hub, whose function says which it is; the place of one."""
    about = {"id": f"tiny_{folder.name}", "name": "tiny", "version": 1, "license": "MIT", "python-depends": []}
    for backend in ("cpu", "cuda"):  # PyTorch is built for one of them
        build = folder / f"build/torch-{backend}"
        write_json(build / "metadata.json", about | {"backend": {"type": backend}})
        write_text(build / "__init__.py", f"def which() -> str:\n    return {folder.name!r}\n")
    return build


def test_a_build_of_the_kernels_hub_is_downloaded_once(base, monkeypatch) -> None:
    kernels = pytest.importorskip("kernels")
    cache = base / "cache"
    monkeypatch.setattr("kernels.resolver.CACHE_DIR", str(cache))
    first, second = "1" * 40, "2" * 40
    snapshots = cache / "kernels--owner--tiny/snapshots"
    asked = []
    plain = kernels.install_kernel

    def install(repo: str, version: int | None = None, **options: Any):
        if version is None:
            return plain(repo, **options)
        asked.append(version)  # the hub, which cannot be reached from here
        return builds_in(snapshots / (first if len(asked) == 1 else second))

    monkeypatch.setattr(kernels, "install_kernel", install)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(kernel_builds, "_is_reachable", lambda server: False)
    with pytest.raises(
        FileNotFoundError, match=r"no build of owner/tiny for this PyTorch is here, and .* cannot be reached"
    ):
        hub_kernel("owner/tiny", version=1)
    monkeypatch.setattr(kernel_builds, "_is_reachable", lambda server: True)
    assert hub_kernel("owner/tiny", version=1).which() == first
    monkeypatch.setattr(kernel_builds, "_is_reachable", lambda server: False)
    assert hub_kernel("owner/tiny", version=1).which() == first  # found by the package itself
    assert asked == [1]
    shutil.rmtree(snapshots)  # the cache was emptied
    with pytest.raises(FileNotFoundError, match="cannot be reached"):
        hub_kernel("owner/tiny", version=1)
    monkeypatch.setattr(kernel_builds, "_is_reachable", lambda server: True)
    assert hub_kernel("owner/tiny", version=1).which() == second
    assert asked == [1, 1]
