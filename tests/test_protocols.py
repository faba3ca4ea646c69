"""The library's view of tasks and mixtures: those of tasks/ fit it."""

import inspect

import pytest

from nanochat import protocols
from tasks import TASKS, open_tasks
from tasks.mixing import mix


@pytest.mark.parametrize("name", ["MMLU", "GSM8K"])
def test_tasks_and_mixtures_fit(name, fake_hub, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(fake_hub))
    task = TASKS[name]()
    assert isinstance(task, protocols.Task)
    assert 0 <= task.data.baseline < 1
    mixture = mix(TASKS, name)
    assert isinstance(mixture, protocols.Mixture)
    assert mixture.rows == {name: len(mixture)}
    assert mixture.origin().keys() == mixture.rows.keys()
    assert not isinstance(mixture, protocols.Task)
    assert not isinstance([], protocols.Mixture)


def test_tasks_are_opened_as_the_library_calls_it() -> None:
    ours, theirs = inspect.signature(open_tasks), inspect.signature(protocols.OpenTasks.__call__)
    assert list(ours.parameters.values()) == list(theirs.parameters.values())[1:]
