"""Is this change better? Two versions of the code train in pairs, and a copy that neither can change judges.

- `settings`: how long a run is, and on which text
- `decision`: the statistics, and what a series of trials may spend on errors
- `ledger`: what was asked and found, with chained hashes
- `sides`: an incumbent and a candidate as folders of code; what a candidate may not touch
- `arena`: a run of one side, contained
- `scorer`, `judging`: scores of code that is not trusted
- `referee`: a series, and its trials
- `listing`: what a series has asked, and how long a question takes

The door for other packages:

- settings: BudgetName, ScaleName
- decision: Plan, confirming_pairs
- referee: Question, begin, hand_over, run_trial, open_holdout, list_series, verify_series
- ledger: Ledger, read; listing: ANSWERS, listed; referee: STATUS; sides: git, for benchmarks
- judging: judge, check_rows, Judgement, Limits; scorer: Broken, Refused, copy_files, entry_files, for entries of golf
"""
