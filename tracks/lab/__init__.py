"""Studies of many runs: which mix of data helps, merged models, the best rate.

Commands: `run` (a study from its spec), `embedded` (the whole study on the embedded world), `merge` (one model of
several).

- `kinds`: run_lab: the kinds of studies, for `run`; check_disk, flag_mistakes (for tests).
- `sweep`: the spec of a lab, its runs as steps, its plan, the ledger; imported as a module.
- `engines`: Chains, ENGINES, gpu_names: this machine, a Ray cluster, Slurm.
- `findings`: read_results, Results, recommended, last_figure, write_recommendation, write_report, write_noise: the
  reports of a lab. It uses `significance` (differences with errors, verdicts) and `alarms` (signs of broken runs).
- `merging`: merge, greedy_soup, read_models, read_parent, origin, write_merge, METHODS, Tensors: the ways to merge.
- `rates`: rounds: the search for the best rate.
"""
