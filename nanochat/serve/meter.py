"""What the server counts, as Prometheus reads it."""

from collections import Counter
from collections.abc import Iterable

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)  # seconds of a request


class Meter:
    """paths: those told apart, other ones are counted together. Used in asyncio's thread alone."""

    def __init__(self, paths: Iterable[str]):
        self.paths, self.requests, self.tokens = set(paths), Counter(), Counter()
        self.buckets, self.seconds = Counter(), 0.0

    def request(self, path: str, status: int, seconds: float) -> None:
        self.requests[path if path in self.paths else "other", status] += 1
        self.buckets.update(bound for bound in BUCKETS if seconds <= bound)
        self.seconds += seconds

    def text(self, **gauges: float) -> str:
        """gauges: what stands at some value now."""
        lines = ["# TYPE nanochat_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'nanochat_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE nanochat_request_seconds histogram")
        lines += [f'nanochat_request_seconds_bucket{{le="{bound}"}} {self.buckets[bound]}' for bound in BUCKETS]
        count = self.requests.total()
        lines.append(f'nanochat_request_seconds_bucket{{le="+Inf"}} {count}')
        lines += [f"nanochat_request_seconds_sum {self.seconds:.6f}", f"nanochat_request_seconds_count {count}"]
        for kind in ("prompt", "completion"):
            name = f"nanochat_{kind}_tokens_total"
            lines += [f"# TYPE {name} counter", f"{name} {self.tokens[kind]}"]
        for name, value in gauges.items():
            lines += [f"# TYPE nanochat_{name} gauge", f"nanochat_{name} {value}"]
        return "\n".join(lines) + "\n"
