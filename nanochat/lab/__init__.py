"""Studies of many runs.

The door: `scaling_fit` (read_runs, by_budget, optimum, power_law, ScalingRun, Optimum, LEAST_POINTS).
"""
