from pathlib import Path

from nanochat.stages import MEANS, SHOWN, STAGES, mean_name


def test_a_stage_comes_after_its_parent_and_has_a_script_and_a_section_of_its_own():
    seen = set()
    for stage in STAGES:
        assert stage.parent is None or stage.parent in seen
        seen.add(stage.name)
        assert (Path(__file__).parent.parent / f"scripts/{stage.script}.py").exists()
        assert not stage.headline or stage.column
    assert len(seen) == len({stage.section for stage in STAGES}) == len(STAGES)


def test_the_card_sums_up_every_task_and_a_mean_over_other_tasks_has_another_name():
    for mean, tasks in MEANS.items():
        assert {mean, *tasks} <= set(SHOWN)
        count = len(tasks)
        assert mean_name(mean, tasks) == mean_name(mean, reversed(tasks)) == mean_name(mean, [*tasks, "KMMLU"]) == mean
        assert mean_name(mean, tasks[1:]) == f"{mean} ({count - 1} of {count} tasks)"
        assert mean_name(mean, ["KMMLU"]) == ""
