"""Flags of tiny base models, and the rows of the table that compares them."""

import re

SMALL = ["--aspect-ratio=32", "--head-dim=32", "--max-seq-len=128", "--total-batch-size=256", "--device-batch-size=2"]
SMALL += "--no-compile --dtype=fp32 --eval-bytes=3000 --eval-every=0 --sample-every=-1".split()
ROW = re.compile(r"^\| (\S+-d\d+) +\| (\d+) +\|(?: +[\d.,]+ +\|){3} (\S+) +\| \S+ +\| (\S+) +\| \S+ +\|$", re.M)
