"""One thin recipe a stage: `python -m scripts.tok_train --help`."""

# `python -m scripts.NAME` also finds the old names of commands that live in tracks/ now.
__path__ = [*__path__, f"{__path__[0]}/moved"]
