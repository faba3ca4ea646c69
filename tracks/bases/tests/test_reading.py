"""Files and values of public models are read, or refused in one sentence with their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanochat.errors import UserError
from tracks.bases.reading import about, read_object, read_text, reading_metadata, token_ids


def test_a_sentence_gets_the_place_that_it_is_about(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error, about(tmp_path):
        raise UserError("its width is odd")
    assert str(error.value) == f"{tmp_path}: its width is odd"
    with pytest.raises(KeyError), about(tmp_path):  # a fault of ours keeps its traceback
        {}["width"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(TypeError("no number\nbut a text"), "no number"), (ValueError(), "ValueError"), (KeyError("a"), "'a'")],
)
def test_metadata_of_another_type_is_one_sentence(fault: Exception, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error, reading_metadata(tmp_path):
        raise fault
    assert str(error.value) == f"{tmp_path} has metadata that cannot be read: {reason}"
    with pytest.raises(UserError, match=r"^as it is$"), reading_metadata(tmp_path):
        raise UserError("as it is")


def test_objects_and_texts(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    assert read_object(file) is None
    file.write_text('{"a": "é", "b": [1]}', encoding="utf-8")
    assert read_object(file) == {"a": "é", "b": [1]}
    assert read_text(file) == '{"a": "é", "b": [1]}'
    for content in (b"[1]", b"{", b"[" * 100_000, b"\xff"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"config\.json is damaged: it is no JSON object$"):
            read_object(file)
    with pytest.raises(UserError, match=r"config\.json is damaged: it is no UTF-8$"):
        read_text(file)
    file.write_text(json.dumps({"a": "\ud800"}))
    with pytest.raises(UserError, match=r"config\.json is damaged: it has half a character"):
        read_object(file)


@pytest.mark.parametrize(
    ("values", "ids"), [([2], [2]), ([None, [1, 2], 3], [1, 2, 3]), ([None], []), ([[]], []), ([0, 0], [0, 0])]
)
def test_token_ids_are_one_or_a_list(values: list[Any], ids: list[int]) -> None:
    assert token_ids("eos_token_id", values) == ids


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, None], {"a": 1}])
def test_what_is_no_id_is_named(value: Any) -> None:
    with pytest.raises(UserError, match=r"^its eos_token_id has .*, which is no id$"):
        token_ids("eos_token_id", [value])
