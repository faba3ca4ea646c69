"""Evaluations of models. Other packages import:

- `core_tasks`: BUNDLE, data_files, prepare: the tasks of the CORE metric and their prompts.
- `core`: evaluate, estimate, core_metric, identity: the CORE metric of a base model.
- `chat`: evaluate, Options, core_of: problems that a chat model solves.
- `sandbox`: run_all, missing, REFUSED: programs that a model wrote, contained.
- `bpb`: bits_per_byte, read_text, validation, ratio, sums_of_rows, EvalText: bits per byte of text.
- `samples`: sampling, write_samples: continuations of fixed prompts.
"""
