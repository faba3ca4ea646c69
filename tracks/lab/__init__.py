"""Studies of many runs: which mix of data helps, merged models, the best rate.

Commands: `run` (a study from its spec), `embedded` (the whole study on the embedded world), `merge` (one model of
several).

- `sweep`: the spec of a lab, its runs as steps, its plan, the ledger. `engines` runs them: this machine, a Ray cluster,
  Slurm.
- `findings`: the reports of a lab, with `significance` (differences with errors, verdicts) and `alarms` (signs of
  broken runs).
- `merging`: the ways to merge. `rates`: the search for the best rate.
"""
