"""Data to train on: made, checked and changed before a stage reads it.

Other packages import from here:
  teacher    Teacher, TeacherSettings: another model behind an endpoint; translate, answer, judge; judge_twice,
             judged_metrics: in both orders, with biases; user, plain, read_rows: conversations, and files of rows
"""
