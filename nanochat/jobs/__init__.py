"""The main job, series of runs, and a runner for any list of steps.

The door:
  runner    Chain, Job, Step, TORCHRUN, archive, difference, parent_hashes, reason_to_repeat, run_chains, run_step,
            saved_record: steps and their records
  plan      PlanSettings, STEPS, StepName, choose_setting, find_hardware, stage_flags, make_job: the main job
  estimate  base_run, job_lines: its time, disk and dollars
  scales    SCALES, ScaleName, Flags, read_flags, flag_words: flags by machine size
  series    SeriesSettings, check_flags, figure, flags_among, launch_on_all_gpus, parse_numbers, plan_depths,
            refuse_equal_flops, refuse_own, report_step, run_series, source_of, tokenizer_step, training_seconds,
            training_step, words_of: several runs with one tokenizer
"""
