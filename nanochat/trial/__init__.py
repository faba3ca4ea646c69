"""Is this change better? Two versions of the code train in pairs, and a copy that neither can change judges.

- `settings`: how long a run is, and on which text
- `decision`: the statistics, and what a series of trials may spend on errors
- `ledger`: what was asked and found, with chained hashes
- `sides`: an incumbent and a candidate as folders of code; what a candidate may not touch
- `arena`: a run of one side, contained
- `scorer`, `judging`: scores of code that is not trusted
- `series`: what a series keeps to, its texts, and the copy of the code that judges
- `scoring`: scores on its sealed texts; `bounds`: what a candidate may take, beside the incumbent
- `referee`: a trial, from its question to its answer; `holdout`: what was kept, at the end
- `answers`: words for people, and figures for programs
- `listing`: what a series has asked, and how long a question takes

The door for other packages:

- settings: BudgetName, ScaleName
- decision: Plan, confirming_pairs
- series: Question, begin, hand_over; referee: run_trial; holdout: open_holdout; listing: list_series, verify_series
- ledger: Ledger, read; listing: listed; answers: ANSWERS, STATUS; sides: git, for benchmarks
- judging: judge, check_rows, Judgement, Limits; scorer: Broken, Refused, copy_files, entry_files, for entries of golf
"""
