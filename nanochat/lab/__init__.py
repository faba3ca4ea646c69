"""Studies of many runs.

- `scaling_fit` (read_runs, by_budget, optimum, power_law, ScalingRun, Optimum, LEAST_POINTS).
- `intervals`: interval, Interval: means over seeds.
- `recursion`: ARMS, BPB, FLOPS, FREE_IN_SEED, PARAMETERS, REFIT_STEPS, SECONDS, ArmRun, SeedResult, common_hash,
  open_text, read_arms, refit_exits, unmet_criteria, verdict: recursion compared with its compute.
- `series`: Arm, comparison_table, read_arm, require_equal: arms with several seeds each, compared.
- `golf`: BASELINES, SCALES, Packed, Scale, check_size, code_bytes, scale_of: budgets and entries of the golf track.
- `merge`: merge, greedy_soup, read_models, read_parent, origin, write_merge, METHODS, Tensors: one model of several.
- `rates`: next_rates: the search for the best rate. `significance` is used inside, by `results` and `sweep`.
- `results`: read_results, recommended, losses; `findings`: write_report, write_recommendation: the report of a lab.
- `alarms`: alarms, staircase, stop_share, Alarm: signs of broken runs.
- `sweep`: Run, Spec, add_look, add_round, check_disk, held_out_chains, looks, mistakes, plan_lines, read_spec, run_chains:
  the spec of a lab, and its runs as steps.
- `engines`: ENGINES, Chain: where chains of steps run.
"""
