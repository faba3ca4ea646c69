"""Studies of many runs.

- `scaling_fit` (read_runs, by_budget, optimum, power_law, ScalingRun, Optimum, LEAST_POINTS).
- `intervals`: interval, Interval: means over seeds.
- `recursion`: SeedResult, arms_table, common_hash, curves, exits_table, figures, open_text, read_seeds, refit_exits:
  recursion compared with its compute.
- `series`: Arm, comparison_table, read_arm, require_equal: arms with several seeds each, compared.
- `golf`: BASELINES, SCALES, Packed, Scale, check_size, code_bytes, scale_of: budgets and entries of the golf track.
- `merge`: merge, read_models, read_parent, origin, write_merge, METHODS, Tensors: one model of several.
"""
