"""The workflow for GitHub runs what .ci/run runs everywhere, and may do nothing but read."""

import re

import yaml
from conftest import ROOT


def test_the_workflow_calls_ci_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    started_by = workflow[True]  # YAML 1.1 reads the key `on` so
    assert set(started_by) == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    commands, events = {}, {}
    for name, job in workflow["jobs"].items():
        commands[name] = [step["run"] for step in job["steps"] if "run" in step][-1]
        events[name] = set(re.findall(r"event_name == '(\w+)'", job["if"]))
        used = {action: step for step in job["steps"] if (action := step.get("uses"))}
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used), used
        [python] = [step["with"]["python-version"] for action, step in used.items() if "setup-python" in action]
        assert python == "3.11"
    assert commands == {"tests": "bash .ci/run", "slow": "bash .ci/run -m slow"}
    assert events["tests"] | events["slow"] == set(started_by)
    assert not events["tests"] & events["slow"]
    assert (ROOT / ".ci/run").exists()
