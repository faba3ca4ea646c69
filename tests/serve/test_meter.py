"""What the server counts, in the text that Prometheus reads."""

import re

from nanochat.serve.meter import Meter


def test_text():
    meter = Meter(["/health"])
    for path, status, seconds in [
        ("/health", 200, 0.004),
        ("/health", 200, 0.2),
        ("/x", 404, 2.0),
        ("/y", 404, 1000.0),
    ]:
        meter.request(path, status, seconds)
    meter.tokens["prompt"] += 7
    text = meter.text(running=3)
    assert text.endswith("\n")
    values = dict(re.findall(r"^nanochat_(\S+) (\S+)$", text, re.MULTILINE))
    assert values['requests_total{path="/health",status="200"}'] == "2"
    assert values['requests_total{path="other",status="404"}'] == "2"
    assert [values[f'request_seconds_bucket{{le="{bound}"}}'] for bound in ("0.01", "0.5", "5", "300", "+Inf")] == list(
        "12334"
    )
    assert values["request_seconds_count"] == "4"
    assert float(values["request_seconds_sum"]) == 1002.204
    assert (values["prompt_tokens_total"], values["completion_tokens_total"], values["running"]) == ("7", "0", "3")
    names = {re.match(r"nanochat_[a-z_]+", line)[0] for line in text.splitlines() if not line.startswith("#")}
    typed = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in names} == typed
