"""The series of chat data: nothing planted is left, and mistakes are found first."""

import re

from conftest import plant_world


def test_chat_data_has_no_planted_row(series, base, tiny_world, tmp_path) -> None:
    plant_world(base, tiny_world)
    series("tracks.chatdata.run", "--rows=40", "--vocab-size=300")
    card = (tmp_path / "data.md").read_text(encoding="utf-8")
    assert "## Chat data" in card
    for cause in ("contamination", "exact", "images", "long", "near"):
        assert re.search(rf"^\| {cause} +\| facts ", card, re.MULTILINE), cause
    again = series("tracks.chatdata.run", "--rows=40", "--vocab-size=300")
    assert "== chats: already finished" in again.stdout
    wrong = series("tracks.chatdata.run", "--vocab-size=300", "--tag=wrong", "--filters=turn", code=2)
    assert wrong.stderr.startswith("error: --filters: turn is not known")
    assert not (base / "tok_train/wrong").exists()
    flags = ["--rows=40", "--vocab-size=300", "--tag=all", "--filters=turns,long"]
    unfiltered = series("tracks.chatdata.run", *flags, code=2)
    assert unfiltered.stderr.startswith("error: planted rows are left in ")
    assert f"{base}/chats/all/facts-00000.jsonl" in unfiltered.stderr
