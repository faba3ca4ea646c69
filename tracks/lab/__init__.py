"""Studies of many runs.

- `intervals`: interval, Interval: means over seeds.
- `recursion`: SeedResult, figures, read_seeds, refit_exits, tables: recursion compared with its compute.
- `series`: Arm, comparison_table, read_arm, require_equal: arms with several seeds each, compared.
- `golf`: BASELINES, SCALES, Scale, check_size, code_bytes: budgets and entries of the golf track.
- `engines`: Chains, ENGINES, gpu_names: this machine, a Ray cluster, Slurm.
- `merge`: merge, greedy_soup, read_models, read_parent, origin, write_merge, METHODS, Tensors: one model of several.
- `sweep`: the spec of a lab, its runs as steps, its plan, the ledger; imported as a module.
- `findings`: read_results, Results, recommended, final_loss, write_recommendation, write_report, write_noise: the
  reports of a lab. It uses `significance` (differences with errors, verdicts) and `alarms` (signs of broken runs).
- `rates`: rounds: the search for the best rate.
"""
