"""The license of a model: its name, its link, and the texts that it asks to pass on."""

import shutil
from pathlib import Path

import pytest

from nanochat.paths import read_sha256
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import save_gguf


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlibrary_name: x\nlicense: apache-2.0\n---\n# A\n", "apache-2.0"),
        ("---\nlibrary_name: x\n---\nlicense: mit\n", ""),
        ("license: mit\n", ""),
        ("---\nlicense:\n- mit\n- apache-2.0\n---\n", "mit, apache-2.0"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "cc-by-4.0"),
        ("---\nlicense: other\nlicense_name: our-own\n---\n", "our-own"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense_name: our-own\n---\n", "our-own"),
        ("---\nlicense: {a: b}\n---\n", ""),
        ("---\nlicense: [\n---\n", ""),
        ("---\na: 2026-99-99\nlicense: mit\n---\n", ""),
        ('---\nlicense: "\\ud800"\n---\n', ""),  # half a character
        ("---\nlicense: " + 2000 * "[" + "\n---\n", ""),
    ],
)
def test_the_license_is_that_of_the_card(card: str, licence: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    assert open_source(str(tmp_path / "model")).licence == ""
    (tmp_path / "model" / "README.md").write_text(card)
    assert open_source(str(tmp_path / "model")).licence == licence


@pytest.mark.parametrize(
    ("head", "link"),
    [
        ("license: other\nlicense_name: our-own\nlicense_link: LICENSE", "LICENSE"),
        ("license: gemma\nlicense_link: https://example.org/terms", "https://example.org/terms"),
        ("license: mit\nlicense_link: [a]", ""),
        ('license: mit\nlicense_link: "\\ud800"', ""),
        ("license: mit", ""),
    ],
)
def test_the_link_of_a_license(head: str, link: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text(f"---\n{head}\n---\n")
    assert open_source(str(tmp_path / "model")).licence_link == link


LICENCE_FILES = {
    "LICENSE": b"Pass this on.\r\n",
    "License-2.txt": "\ufeffFür alle\n".encode(),
    "NOTICE": b"Made by a fox.",
    "USE_POLICY.md": b"# No hunting\n" + 999_900 * b"x",
}


def test_the_files_of_a_license(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of up to 1 MB, to the byte; others are named and left, and refuse nothing."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    assert open_source(str(folder)).licence_texts == {}
    assert capsys.readouterr().err == ""
    others = {"LICENSE.pdf": b"%PDF \xff\xfe", "NOTICE.all": 1_000_001 * b"x", "UNLICENSE": b"x", "NOTES": b"x"}
    for name, content in {**LICENCE_FILES, **others}.items():
        (folder / name).write_bytes(content)
    (folder / "licenses").mkdir()
    (folder / "licenses" / "LICENSE").write_text("of a part")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    source = open_source(str(folder))
    assert {name: text.encode() for name, text in source.licence_texts.items()} == LICENCE_FILES
    hashes = source.hashes()
    assert all(hashes[name] == read_sha256(folder / name) for name in (*LICENCE_FILES, "README.md"))
    assert not hashes.keys() & others.keys()
    assert [line.split("'")[1] for line in capsys.readouterr().err.splitlines()] == ["LICENSE.pdf", "NOTICE.all"]


def test_a_gguf_file_names_its_license(tmp_path: Path) -> None:
    entries = {"general.license": "other", "general.license.name": "our-own", "general.license.link": "LICENSE"}
    save_gguf("llama", tmp_path / "model.gguf", entries=entries)
    source = open_source(str(tmp_path / "model.gguf"))
    assert (source.licence, source.licence_link, source.licence_texts) == ("our-own", "LICENSE", {})
