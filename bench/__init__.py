"""Benchmarks: `python -m bench.tokenizer --help`. README.md lists them."""

# `python -m bench.NAME` also finds the old names of commands that live in tracks/ now.
__path__ = [*__path__, f"{__path__[0]}/moved"]
