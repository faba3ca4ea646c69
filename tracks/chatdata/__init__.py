"""Making data for fine-tuning: chats through filters, multiple choice augmented, a teacher.

Other packages import from here:
  filters        FilterSettings, chosen_filters, pairs: settings and the table of filters; check_settings,
                 check_names: mistakes in settings; Context: all that filters know
  contamination  Benchmarks: questions to be kept out of training text
  store          filter_file, merge, write_output, report: from rows to files, through tables on disk
  bm25           BM25: search for similar texts
  augment        STYLES, Style, answers_in, remix, MOST_CHOICES, HANGUL: other styles of questions and answers,
                 and more choices
  teacher        Teacher, TeacherSettings, translate, answer, check_choices, judge, judged_metrics: another
                 model and its uses
"""
