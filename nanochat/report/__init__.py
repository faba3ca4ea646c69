"""Report card and comparison of runs, from the `outcome.json` of each stage.

The door: `card` (read_card, Card, cost, hourly_rate, markdown), `plots` (Plot, draw_plot, picture_file), `compare`
(compare, decisions, read_answers, Answers), the command `python -m nanochat.report`.
"""
