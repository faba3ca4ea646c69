"""Extras of pyproject.toml: a package that is missing names those that install it."""

import re

from nanochat.errors import UserError


def not_installed(module: str) -> UserError | None:
    """Return the error for a module that cannot be found and that extras of pyproject.toml install; else None."""
    from importlib import metadata  # slow

    name = module.split(".")[0]
    try:
        requirements = metadata.requires("nanochat") or []  # `openai; extra == 'teacher'`
    except metadata.PackageNotFoundError:  # run from a folder that nothing has installed
        return None
    pattern = re.compile(rf"{name}(?![\w.-]).*; extra == ['\"]([\w-]+)['\"]")
    found = {match[1] for requirement in requirements if (match := pattern.match(requirement))}
    if not found:
        return None
    # Several have pydantic, for example. The one for developing comes last, because it is the largest.
    extras = sorted(found, key=lambda extra: (extra == "dev", extra))
    return UserError(
        f"{name} is not installed: add the extra {' or '.join(extras)}, by `uv sync --extra={extras[0]}` or "
        f"`pip install ./rustbpe '.[{extras[0]}]'`; `bash runs/setup.sh` installs all that are locked"
    )
