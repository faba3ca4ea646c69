"""The kernels of a training step, by time: `scripts.base_train` under torch's profiler, after a run that compiles.

python -m bench.profile [--depth 12] [--rows 32] [--length 2048] [--trace FILE] [FLAGS OF BASE TRAINING …]
"""

import tempfile

from bench.common import parser_of, required, run_script
from bench.findings import Findings

STEPS = 6


def profile(job: dict):
    import torch
    from torch.profiler import ProfilerActivity

    run_script("tok_train", ["--vocab-size=4096", "--data=world", "--max-chars=2e7"])
    flags = f"--depth={job['depth']} --max-seq-len={job['length']} --total-batch-size={job['rows'] * job['length']}"
    flags += f" --device-batch-size={job['rows']} --num-iterations={STEPS} --data=world --tag=profile --resume=never"
    flags += " --eval-every=-1 --save-every=-1 --sample-every=-1"
    flags = [*flags.split(), *job["flags"]]
    run_script("base_train", flags)  # compiles, for the cache of the run that is measured
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as found:
        run_script("base_train", flags)
    if job["trace"]:
        found.export_chrome_trace(job["trace"])
    order = f"self_{'cuda' if on_gpu else 'cpu'}_time_total"
    averages = found.key_averages()
    own = f"self_{'device' if on_gpu else 'cpu'}_time_total"
    rows = [[one.key, one.count, getattr(one, own) / 1e6] for one in averages]
    return {
        "table": averages.table(sort_by=order, row_limit=30, max_name_column_width=70),
        "rows": sorted(rows, key=lambda row: row[2], reverse=True)[:30],
    }


def main() -> None:
    parser = parser_of("profile", __doc__, depth=12, rows=32, length=2048)
    parser.add_argument("--trace", default="", help="file for a trace that browsers show")
    options, flags = parser.parse_known_args()
    findings = Findings("profile", options.json)
    with tempfile.TemporaryDirectory() as folder:
        found = required(profile, vars(options) | {"flags": flags}, env={"NANOCHAT_BASE_DIR": folder})
        print(f"{STEPS} steps, {options.rows} rows of {options.length} tokens, depth {options.depth}\n")
        print(found["table"])
        for name, calls, seconds in found["rows"]:
            findings.add(name=name, calls=calls, seconds=seconds)
    findings.finish()


if __name__ == "__main__":
    main()
