"""Attacks, and how many of them were held: programs on the sandbox, answers that forge verdicts, requests, expressions.

    python -m bench.attacks [--only kills speedrun programs forgeries requests expressions]

The tables are in bench/hostile_programs.py and bench/hostile_requests.py, the attempts in bench/attempts.py. A memory
attack counts as held if the machine's available memory fell by at most the sandbox's limit and a tenth: run nothing
else meanwhile.
"""

import sys
from collections import Counter

from bench.attempts import KINDS
from bench.common import parser_of
from bench.findings import Findings


def main() -> None:
    parser = parser_of("attacks", __doc__)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    findings = Findings("attacks", options.json)
    attempts = Counter()
    held = Counter()
    for name in options.only:
        for kind, attack, is_held in KINDS[name]():
            attempts[name, kind] += 1
            held[name, kind] += is_held
            if not is_held:
                print(f"NOT HELD: {kind}: {attack}")
    print(f"\n{'table':12} {'kind':16} {'attempts':>10} {'held':>10}")
    for (name, kind), count in attempts.items():
        print(f"{name:12} {kind:16} {count:>10,} {held[name, kind]:>10,}")
        findings.add(table=name, kind=kind, attempts=count, held=held[name, kind])
    findings.finish()
    sys.exit(attempts != held)


if __name__ == "__main__":
    main()
