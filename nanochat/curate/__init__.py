"""Making data for fine-tuning: multiple choice, augmented.

Other packages import from here:
  bm25     BM25: search for similar texts
  augment  STYLES, list_choices, answers_in, remix, MOST_CHOICES, HANGUL: other styles of questions and answers, and
           more choices
"""
