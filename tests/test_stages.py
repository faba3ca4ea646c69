from pathlib import Path

from conftest import ROOT

from nanochat.stages import MEANS, SHOWN, STAGES, mean_name


def test_stages_and_means_of_the_card() -> None:
    seen = set()
    for stage in STAGES:
        assert stage.parent is None or stage.parent in seen
        seen.add(stage.name)
        assert stage.module == "tracks.preferences.train" or Path(ROOT, stage.module.replace(".", "/") + ".py").exists()
        assert not stage.headline or stage.column
    assert len(seen) == len({stage.section for stage in STAGES}) == len(STAGES)
    for mean, tasks in MEANS.items():
        assert {mean, *tasks} <= set(SHOWN)
        count = len(tasks)
        assert mean_name(mean, tasks) == mean_name(mean, reversed(tasks)) == mean_name(mean, [*tasks, "KMMLU"]) == mean
        assert mean_name(mean, tasks[1:]) == f"{mean} ({count - 1} of {count} tasks)"
