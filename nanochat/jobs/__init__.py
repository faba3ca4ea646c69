"""The main job, and a runner for any list of steps.

The door: `runner` (Chain, Job, Step, TORCHRUN, archive, difference, run_chains,
saved_record), `plan` (STEPS, choose_setting,
stage_flags, make_job), `estimate` (base_run, job_lines), `scales` (SCALES, read_flags, flag_words),
`preflight` (check, join, measure, report).
"""
