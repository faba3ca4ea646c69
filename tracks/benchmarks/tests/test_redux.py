"""KMMLU-Redux from either folder, in the layout of its published readers, and the sentence if it is in neither."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from chat_files import contents

from nanochat.data.hub import HubError
from tasks import TASKS
from tracks.benchmarks.redux import OTHER_FOLDER

DATA = TASKS["KMMLU-Redux"]
ROWS = [
    {
        "question": f"{number}번 문제로 옳은 것은?",
        "options": [f"보기 {choice}" for choice in range(1, 5)],
        "solution": str(number % 4 + 1),
        "license_name": "조경기사",
        "category": "건설",
    }
    for number in range(8)
]


@pytest.mark.parametrize("folder", ["kmmlu_redux", OTHER_FOLDER])
def test_it_is_read_from_either_folder(folder, write_rows) -> None:
    path = write_rows(replace(DATA, parts=(folder,)), ROWS)
    assert path.parts[-3:] == (folder, "test", "0000.parquet")
    task = DATA()
    assert len(task) == len(ROWS)
    assert [*task.files.values()] == [path]
    assert task.hashes().keys() == {f"datasets/LGAI-EXAONE/KMMLU-Redux/{folder}/test/0000.parquet"}
    for conversation in task:
        question, right = contents(conversation)
        number = int(question[0])
        assert f"- 보기 {number % 4 + 1}={right}\n" in question
        assert conversation["letters"] == "ABCD"


def test_a_solution_beyond_the_choices_is_named(write_rows) -> None:
    write_rows("KMMLU-Redux", [ROWS[0] | {"solution": "5"}])
    with pytest.raises(ValueError, match="KMMLU-Redux, split test, row 0: the right answer is none of its 4 choices"):
        DATA()[0]


def test_in_neither_folder_it_is_refused_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    monkeypatch.setattr("nanochat.data.hub.refusal", lambda server: "downloads are switched off")
    with pytest.raises(
        HubError, match="KMMLU-Redux cannot be read: its folder on the hub is not documented"
    ) as refused:
        DATA()
    sentence = str(refused.value)
    for folder in ("kmmlu_redux", OTHER_FOLDER):
        assert f"datasets/LGAI-EXAONE/KMMLU-Redux/{folder}/test/0000.parquet" in sentence
    assert "downloads are switched off" in sentence


def test_the_files_of_the_gated_sets_are_where_their_readers_find_them(write_rows) -> None:
    """GPQA's answers are texts, in columns with spaces; KMMLU's are numbers from 1, those of KMMLU-Pro are text."""
    names = {
        "GPQA": "gpqa_diamond/train/0000.parquet",
        "KMMLU-Pro": "kmmlu_pro/test/0000.parquet",
    }
    for name, path in names.items():
        [file] = TASKS[name].files("test")
        assert file.path == path
        assert file.revision == "refs/convert/parquet"
    pro = {
        "question": "옳은 것은?",
        "options": list("가나다라마"),
        "solution": "5",
        "license_name": "변호사",
        "subject": "민법",
    }
    path = write_rows("KMMLU-Pro", [pro])
    assert pq.read_table(path).column_names == [*pro]
    assert contents(TASKS["KMMLU-Pro"]()[0])[1] == "E"
