from pathlib import Path

from nanochat.stages import CHAT, STAGES, core_name
from tasks import CHAT_CORE


def test_a_stage_comes_after_its_parent():
    seen = set()
    for stage in STAGES:
        assert stage.parent is None or stage.parent in seen
        seen.add(stage.name)
    assert len(seen) == len(STAGES)


def test_every_stage_has_a_script_and_a_section_of_its_own():
    assert len({stage.section for stage in STAGES}) == len(STAGES)
    for stage in STAGES:
        assert (Path(__file__).parent.parent / f"scripts/{stage.script}.py").exists()
        assert not stage.headline or stage.column


def test_the_card_sums_up_every_task():
    assert (*CHAT_CORE, "ChatCORE") == CHAT


def test_a_mean_over_other_tasks_has_another_name():
    *core, name = CHAT
    assert core_name(core) == core_name(reversed(core)) == name
    assert core_name(core[1:]) == "ChatCORE (5 of 6 tasks)"
    assert core_name(["GSM8K"]) == "ChatCORE (1 of 6 tasks)"
    assert core_name([*core, "KMMLU"]) == name
    assert core_name(["KMMLU"]) == ""
