"""The labelled rows: their file, the draw that chose them, and a mirror with other rows."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.errors import UserError
from tracks.chatdata import labelled
from tracks.chatdata.topics import TOPICS


def test_the_file_has_300_labels_in_two_halves_and_enough_of_each_topic() -> None:
    labels = labelled.read_labels()
    assert len(labels) == 300
    assert Counter(label["half"] for label in labels) == {"tune": 150, "test": 150}
    assert len({(label["data set"], label["row"]) for label in labels}) == 300
    topics = Counter(label["topic"] for label in labels)
    assert {*topics} == {*TOPICS}
    assert min(topics.values()) >= 20


def test_the_draw_is_the_one_that_was_labelled(mirror) -> None:
    columns = labelled.COLUMNS[:-1]
    drawn = {tuple(str(row[column]) for column in columns) for row in labelled.draw()}
    assert drawn == {tuple(label[column] for column in columns) for label in labelled.read_labels()}
    rows = labelled.labelled_rows()
    assert [row["label"] for row in rows] == [label["topic"] for label in labelled.read_labels()]


def test_other_rows_than_the_labelled_ones_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    data = labelled.SETS["korean-chatbot"]
    path = tmp_path / str(data.file)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"Q": ["뭐 해?"], "A": ["쉬어요."]}), path)
    label = dict(zip(labelled.COLUMNS, ("korean-chatbot", "0", "0" * 12, "any", "tune", "daily"), strict=True))
    monkeypatch.setattr(labelled, "read_labels", lambda: [label])
    with pytest.raises(UserError, match=r"row 0 of datasets/local/korean-chatbot-data/.* is not the one"):
        labelled.labelled_rows()
    [row] = labelled.read_set("korean-chatbot")
    assert labelled.text_of_row(row) == "뭐 해?\n쉬어요."
