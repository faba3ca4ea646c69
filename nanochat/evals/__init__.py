"""Evaluations of models. Other packages import:

- `core_tasks`: BUNDLE, open_core, read_bundle: the tasks of the CORE metric and their prompts.
- `rows`: overlapping_rows: a text as rows with a stride.
- `core`: evaluate_core, core_scores: the CORE metric of a base model.
- `chat`: evaluate_task, task_scores, common_tasks, log_figures, mean_scores, sample_answers, chat_validation: problems
  that a chat model solves, and its loss on conversations.
- `sandbox`: judge, side_by_side, require, run_program, Limits, NoSandbox: contains programs that a model wrote.
- `bpb`: text_bpb, bpb_of_kinds, ratio, sum_rows, bits_per_byte, first_documents, read_text, EvalText,
  text_validation, validation_text, log_validation, write_samples, sample_writing: loss, and samples.
"""
