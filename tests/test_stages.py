from pathlib import Path

from nanochat.stages import STAGES


def test_a_stage_comes_after_its_parent():
    seen = set()
    for stage in STAGES:
        assert stage.parent is None or stage.parent in seen
        seen.add(stage.name)
    assert len(seen) == len(STAGES)


def test_every_stage_has_a_script_and_a_section_of_its_own():
    assert len({stage.section for stage in STAGES}) == len(STAGES)
    for stage in STAGES:
        assert (Path(__file__).parent.parent / f"scripts/{stage.name}.py").exists()
        assert not stage.headline or stage.column
