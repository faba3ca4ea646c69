"""Curation of chats: filters, duplicates, and questions of benchmarks in training text.

Other packages import from here:
  filters        FilterSettings, chosen_filters, pairs: settings and the table of filters; Context: all that
                 filters know
  contamination  Benchmarks: questions to be kept out of training text
  store          filter_file, merge, write_output, report: from rows to files, through tables on disk
"""
