"""Data to train on: made, checked and changed before a stage reads it.

Other packages import from here:
  teacher    Teacher, TeacherSettings: another model behind an endpoint; translate, answer, judge; plain, read_rows
"""
