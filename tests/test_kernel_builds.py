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


def test_a_build_of_the_kernels_hub_is_downloaded_once(base, monkeypatch, capsys) -> None:
    kernels = pytest.importorskip("kernels")
    cache = base / "cache"
    monkeypatch.setenv("KERNELS_CACHE", str(cache))  # read when the package is imported, and later
    monkeypatch.setattr("kernels.resolver.CACHE_DIR", str(cache))
    first, second, third = ("1" * 40, "2" * 40, "3" * 40)
    snapshots = cache / "kernels--owner--tiny/snapshots"
    asked = []
    plain = kernels.install_kernel

    def install(repo: str, version: int, **options: Any):
        if options:
            return plain(repo, version=version, **options)
        asked.append(version)  # the hub, which cannot be reached from here
        return builds_in(snapshots / (first, second, third)[len(asked) - 1])

    def reach(answers: bool) -> None:
        monkeypatch.setattr(kernel_builds, "_is_reachable", lambda server: answers)

    monkeypatch.setattr(kernels, "install_kernel", install)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reach(False)
    missing = r"no build of owner/tiny for this PyTorch is here, and .* cannot be reached"
    with pytest.raises(FileNotFoundError, match=missing):
        hub_kernel("owner/tiny", version=1)
    reach(True)
    assert hub_kernel("owner/tiny", version=1).which() == first
    reach(False)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base / "another"))
    assert hub_kernel("owner/tiny", version=1).which() == first  # found by the package itself
    assert asked == [1]
    with pytest.raises(FileNotFoundError, match=missing):
        hub_kernel("owner/tiny", version=2)
    shutil.rmtree(snapshots)  # the cache was emptied
    with pytest.raises(FileNotFoundError, match=missing):
        hub_kernel("owner/tiny", version=1)
    reach(True)
    assert hub_kernel("owner/tiny", version=1).which() == second
    # Of a build that is damaged a line speaks, and it comes again.
    for build in (snapshots / second / "build").iterdir():
        write_text(build / "__init__.py", "import nothing_of_this_name")
    monkeypatch.setattr("kernels.importer._loaded_kernels", {})
    capsys.readouterr()
    assert hub_kernel("owner/tiny", version=1).which() == third
    assert "cannot be loaded (ModuleNotFoundError: " in capsys.readouterr().out
    assert asked == [1, 1, 1]
