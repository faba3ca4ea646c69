"""One thin recipe a stage: `python -m scripts.tok_train --help`."""
