"""Studies of many runs.

The door: `scaling_fit` (read_runs, by_budget, optimum, power_law, ScalingRun, Optimum, LEAST_POINTS).
- `intervals`: interval, Interval: means over seeds.
- `recursion`: ARMS, BPB, FLOPS, ArmRun, SeedResult, read_arms, compare, refit_first_exit, verdict: recursion compared.
"""
