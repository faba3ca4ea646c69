"""The error that a user can do something about."""

import re


class UserError(ValueError):
    """A setting or an input that is not possible; its message is one sentence that says what to change.

    A script ends with the sentence and exit code 2 (`config.run_script`). Any other ValueError is a defect of the code:
    its place is shown too.
    """


def not_installed(module: str) -> UserError | None:
    """Return the error for a module that cannot be found and that an extra of pyproject.toml installs; else None."""
    from importlib import metadata  # slow

    name = module.split(".")[0]
    try:
        requirements = metadata.requires("nanochat") or []  # `openai; extra == 'teacher'`
    except metadata.PackageNotFoundError:  # run from a folder that nothing has installed
        return None
    for requirement in requirements:
        if extra := re.match(rf"{name}\b.*; extra == ['\"]([\w-]+)['\"]", requirement):
            return UserError(
                f"{name} is not installed: add the extra {extra[1]}, by `uv sync --extra={extra[1]}` or "
                f"`pip install ./rustbpe '.[{extra[1]}]'`; `bash runs/setup.sh` installs all that are locked"
            )
    return None
