"""Pictures: what is in them, and that they are the same each time."""

from xml.etree import ElementTree

from nanochat.plots import draw

CURVE = {
    "title": "Loss <of> a run",
    "x": "step",
    "y": "nats",
    "series": {"train": [list(range(100)), [5 / (i + 1) for i in range(100)]], "val": [[0, 50, 99], [5.0, 1.0, 0.5]]},
}


def test_a_curve_becomes_a_picture_with_its_words(tmp_path):
    draw(CURVE, tmp_path / "loss.svg")
    words = {text.text for text in ElementTree.parse(tmp_path / "loss.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"Loss <of> a run", "step", "nats", "train", "val"} <= words


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        draw(CURVE, tmp_path / name / "loss.svg")
    assert (tmp_path / "a/loss.svg").read_bytes() == (tmp_path / "b/loss.svg").read_bytes()
    draw(CURVE | {"title": "Another"}, tmp_path / "b/loss.svg")
    assert (tmp_path / "a/loss.svg").read_bytes() != (tmp_path / "b/loss.svg").read_bytes()


def test_one_series_needs_no_legend(tmp_path):
    draw(CURVE | {"series": {"train": CURVE["series"]["train"]}}, tmp_path / "loss.svg")
    assert ">train<" not in (tmp_path / "loss.svg").read_text()
