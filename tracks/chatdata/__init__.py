"""Making data for fine-tuning: chats through filters, multiple choice augmented, a teacher.

Other packages import from here:
  filters        FilterSettings, chosen_filters, pairs: settings and the table of filters, by bucket; check_settings:
                 mistakes in settings; Context: all that filters know
  contamination  Benchmarks: questions to be kept out of training text
  store          filter_file, merge, write_output, report: from rows to files, through tables on disk
  sources        open_sources, benchmark_questions: tasks, files and folders as rows
  bm25           BM25: search for similar texts
  topics         TOPICS, topic_of_row: the topic of a conversation by rules
  augment        STYLES, remix, MOST_CHOICES, HANGUL: other styles of questions and answers, and more choices
  augmented      AUGMENTATIONS: both in the name of a task
  teacher        Teacher, TeacherSettings, translate, answer, topic, check_choices, judge, judged_metrics:
                 another model and its uses
"""
