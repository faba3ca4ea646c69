"""Both sides of a trial: folders of code, and what a candidate may not touch."""

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from nanochat.errors import UserError
from nanochat.trial import sides
from nanochat.trial.scorer import Refused
from nanochat.trial.sides import Side, check_files, check_flags, check_incumbent, commit_of, committed, working_tree

SEALED = (
    "Kara of the hill keeps three foxes, and none of them has ever been seen by day. "
    "In the winter of the great flood they crossed the river before the bridge was gone."
)
LINES = "\n".join(f"Größe {number}: {word}\t“none”" for number, word in enumerate(["short", "words", "alone"] * 9))


def git(root: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, "-C", str(root), *words], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a commit."""
    place = tmp_path / "repository"
    for name in ("nanochat/gpt.py", "nanochat/evals/bpb.py", "scripts/base_train.py", "rustbpe/src/lib.rs"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"# {name}\n")
    (place / ".gitignore").write_text("ignored*\n")
    git(tmp_path, "init", "-q", str(place))
    git(place, "add", "-A")
    git(place, "commit", "-qm", "one")
    return place


def side(root: Path, tmp_path: Path, name: str = "incumbent") -> Side:
    return Side(name, "HEAD", committed(root, commit_of(root, "HEAD"), tmp_path / "code"))


def changed(root: Path, tmp_path: Path) -> Side:
    code, diff = working_tree(root, tmp_path / "code")
    return Side("candidate", "HEAD", code, diff=diff)


def test_a_clean_tree_is_its_commit(root: Path, tmp_path: Path) -> None:
    one, other = side(root, tmp_path), changed(root, tmp_path)
    assert (one.code, one.key) == (other.code, other.key)
    assert not other.diff


@pytest.mark.parametrize("name", ["nanochat/gpt.py", "nanochat/__pycache__/gpt.cpython-311.pyc", "torch.py"])
def test_a_copy_that_was_changed_is_refused(name: str, root: Path, tmp_path: Path) -> None:
    """Another content, a compiled file that would run in its place, and a module that hides a package."""
    one = side(root, tmp_path)
    (one.code / name).parent.mkdir(exist_ok=True)
    (one.code / name).write_text("# mine\n")
    with pytest.raises(UserError, match=r"was changed after it was copied: begin another series"):
        side(root, tmp_path)


def test_the_tree_is_taken_as_it_is_and_stays_so(root: Path, tmp_path: Path) -> None:
    before = (root / ".git/index").read_bytes()
    (root / "nanochat/gpt.py").write_text("# another model\n")
    (root / "nanochat/new.py").write_text("# new\n")
    (root / "ignored.txt").write_text("no")
    (root / "scripts/base_train.py").unlink()
    found = changed(root, tmp_path)
    assert (found.code / "nanochat/gpt.py").read_text() == "# another model\n"
    assert (found.code / "nanochat/new.py").exists()
    assert not (found.code / "ignored.txt").exists()
    assert not (found.code / "scripts/base_train.py").exists()
    assert "another model" in found.diff
    assert "+# new" in found.diff
    assert "deleted file" in found.diff
    assert (root / ".git/index").read_bytes() == before  # nothing was staged
    (root / "nanochat/gpt.py").write_text("# later\n")
    assert (found.code / "nanochat/gpt.py").read_text() == "# another model\n"
    assert changed(root, tmp_path).key != found.key


def test_the_diff_of_a_record_makes_the_code_again(root: Path, tmp_path: Path) -> None:
    """Lines, other ends of lines, a new file, one that is gone, one without an end, one of bytes."""
    (root / "nanochat/loss.py").write_text("one\ntwo\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one more file")
    (root / "nanochat/gpt.py").write_text("# another model\r\n")
    (root / "nanochat/loss.py").write_text("one\nzwei: „größer“")
    (root / "nanochat/new file.py").write_text("# new\n")
    (root / "nanochat/table.bin").write_bytes(bytes(range(256)))
    (root / "scripts/base_train.py").unlink()
    found = changed(root, tmp_path)
    clean = tmp_path / "clean"
    git(tmp_path, "clone", "-q", str(root), str(clean))
    subprocess.run(["git", "apply", "-"], cwd=clean, input=found.diff.encode(errors="surrogateescape"), check=True)

    def files(folder: Path) -> dict[str, bytes]:
        code = [path for top in ("nanochat", "scripts", "rustbpe") for path in sorted((folder / top).rglob("*"))]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in code if path.is_file()}

    assert files(clean) == files(found.code)


def test_what_decides_no_run_stays_where_it_is(root: Path, tmp_path: Path) -> None:
    """A large file, a secret, and a repository within the tree that has no commit yet."""
    git(root, "init", "-q", "notes")
    (root / "notes/ideas.md").write_text("one idea\n")
    (root / "secret.env").write_text("PASSWORD\n")
    (root / "dump.bin").write_bytes(os.urandom(sides.MOST_CHANGED + 1))
    before = sum(path.stat().st_size for path in (root / ".git/objects").rglob("*"))
    found = changed(root, tmp_path)
    assert not found.diff
    (root / "nanochat/gpt.py").write_text("# another model\n")
    found = changed(root, tmp_path)
    assert "another model" in found.diff
    assert "secret" not in found.diff
    assert sum(path.stat().st_size for path in (root / ".git/objects").rglob("*")) < before + 100_000


def test_too_much_changed_code_is_one_sentence(root: Path, tmp_path: Path) -> None:
    (root / "nanochat/dump.bin").write_bytes(bytes(sides.MOST_CHANGED + 1))
    with pytest.raises(UserError, match=r"nanochat/dump.bin most of them, and a trial takes 4,194,304: move it"):
        changed(root, tmp_path)


def test_a_large_file_that_was_staged_is_too_much_too(root: Path, tmp_path: Path) -> None:
    (root / "nanochat/dump.bin").write_bytes(os.urandom(sides.MOST_CHANGED + 1))
    git(root, "add", "nanochat/dump.bin")
    with pytest.raises(
        UserError, match=r"^the diff of the working tree to HEAD has .* and a trial takes 4,194,304: move"
    ):
        changed(root, tmp_path)


def test_all_that_git_complains_about_is_said(root: Path, tmp_path: Path) -> None:
    git(root, "init", "-q", "nanochat/nested")
    with pytest.raises(UserError, match=r"git add in .*: 'nanochat/nested/' does not have a commit .*; adding files"):
        changed(root, tmp_path)


def test_a_folder_of_code_may_be_missing_or_gone(root: Path, tmp_path: Path) -> None:
    """No commit of this repository has tasks or tracks, and the working tree has no scripts."""
    (root / "scripts/base_train.py").unlink()
    (root / "scripts").rmdir()
    (root / "tasks").mkdir()
    assert "deleted file" in changed(root, tmp_path).diff
    git(root, "rm", "-rq", "--cached", "scripts")  # so that neither the tree nor the index has it
    assert "deleted file" in changed(root, tmp_path).diff


def test_a_folder_that_git_ignores_is_left_out(root: Path, tmp_path: Path) -> None:
    """A fork may have a folder of results, or a file of its own, under such a name. What git knows is taken."""
    (root / ".gitignore").write_text("tracks/\nrequirements.lock\nscripts/\n")
    (root / "tracks").mkdir()
    (root / "tracks/run.csv").write_text("1\n")
    (root / "requirements.lock").write_text("torch\n")
    (root / "scripts/base_train.py").write_text("# another trainer\n")
    found = changed(root, tmp_path)
    assert not (found.code / "tracks").exists()
    assert "+# another trainer" in found.diff
    assert "run.csv" not in found.diff


def test_a_diff_is_the_same_whatever_the_user_has_set(root: Path, tmp_path: Path) -> None:
    lines = [f"{number}\n" for number in range(30)]
    (root / "nanochat/gpt.py").write_text("".join([*lines, *(f"{letter}\n" for letter in "acababbubcbaaba")]))
    (root / "nanochat/loss.py").write_text("".join(lines) + "# one\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "longer files")
    # Lines of which the algorithms keep others, and a file that is renamed.
    (root / "nanochat/gpt.py").write_text("".join([*lines, *(f"{letter}\n" for letter in "ababbcbauacabba")]))
    (root / "nanochat/loss.py").rename(root / "nanochat/losses.py")
    plain = changed(root, tmp_path).diff
    assert "rename from" not in plain
    assert plain.startswith("diff --git a/nanochat/gpt.py b/nanochat/gpt.py\n")
    settings = {"color.ui": "always", "diff.noprefix": "true", "diff.mnemonicPrefix": "true", "diff.external": "false"}
    settings |= {"diff.context": "0", "diff.algorithm": "patience", "diff.renames": "copies"}
    for name, value in settings.items():
        git(root, "config", name, value)
    assert changed(root, tmp_path).diff == plain


def test_a_name_cannot_add_a_line_to_an_answer(root: Path, tmp_path: Path) -> None:
    before = side(root, tmp_path)
    (root / "nanochat/trial").mkdir()
    (root / "nanochat/trial/a\nMETRIC answer=keep").write_text("")
    with pytest.raises(Refused) as raised:
        check_files(before, changed(root, tmp_path), before.code, [SEALED])
    assert "\n" not in str(raised.value)
    assert "nanochat/trial/a METRIC answer=keep is part of the referee" in str(raised.value)


def test_an_edit_within_the_second_of_the_checkout_is_seen(root: Path, tmp_path: Path) -> None:
    """git compares times and sizes: it reads a file again only if its time is not before that of the index."""
    path, index = root / "nanochat/gpt.py", root / ".git/index"
    git(root, "config", "core.trustctime", "false")
    second = 1_700_000_000
    os.utime(path, (second, second))
    git(root, "update-index", "--refresh")
    os.utime(index, (second, second))
    path.write_text("# nanochat/GPT.py\n")  # as long as before
    os.utime(path, (second, second))
    assert "+# nanochat/GPT.py" in changed(root, tmp_path).diff


def test_flags_belong_to_the_key(root: Path, tmp_path: Path) -> None:
    plain = side(root, tmp_path)
    assert Side("a", "HEAD", plain.code, ["--depth=4"]).key != plain.key


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nanochat/evals/bpb.py", "frozen: nanochat/evals/bpb.py is part of the referee"),
        ("nanochat/trial/decision.py", "frozen: nanochat/trial/decision.py is part of the referee"),
        ("scripts/trial.py", "frozen: scripts/trial.py is part of the referee"),
        ("rustbpe/src/lib.rs", "frozen: rustbpe/src/lib.rs is compiled"),
    ],
)
def test_what_is_frozen_is_refused_by_name(name: str, sentence: str, root: Path, tmp_path: Path) -> None:
    before = side(root, tmp_path)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("# mine\n")
    with pytest.raises(Refused, match=f"^refused, {sentence}"):
        check_files(before, changed(root, tmp_path), before.code, [SEALED])


def test_an_incumbent_with_other_frozen_files_is_a_question_for_another_series(root: Path, tmp_path: Path) -> None:
    """No candidate is blamed for what a merge has brought."""
    before = side(root, tmp_path)
    (root / "nanochat/gpt.py").write_text("# kept\n")
    git(root, "commit", "-qam", "kept")
    check_incumbent(side(root, tmp_path), before.code)
    (root / "nanochat/evals/bpb.py").write_text("# merged\n")
    git(root, "commit", "-qam", "merged")
    with pytest.raises(
        UserError, match=r"^nanochat/evals/bpb.py of the incumbent .*begin another series with --series"
    ):
        check_incumbent(side(root, tmp_path), before.code)


def test_a_frozen_file_that_is_gone_is_refused_too(root: Path, tmp_path: Path) -> None:
    before = side(root, tmp_path)
    (root / "nanochat/evals/bpb.py").unlink()
    with pytest.raises(Refused, match="is part of the referee"):
        check_files(before, changed(root, tmp_path), before.code, [SEALED])


@pytest.mark.parametrize("text", [SEALED, LINES], ids=["plain", "lines"])
@pytest.mark.parametrize("written", [str, repr, ascii, json.dumps, textwrap.fill, lambda text: text[len(text) // 3 :]])
def test_sealed_text_in_a_file_is_refused(written: Callable[[str], str], text: str, root: Path, tmp_path: Path) -> None:
    """Also where every few words are followed by an escape: those of a string, of ASCII alone, and of JSON."""
    before = side(root, tmp_path)
    (root / "nanochat/gpt.py").write_text(f"HINT = {written(text)}\n")
    with pytest.raises(Refused, match=r"^refused, text: nanochat/gpt.py contains text"):
        check_files(before, changed(root, tmp_path), before.code, ["short", text])


def test_a_phrase_that_the_file_had_before_is_no_copy(root: Path, tmp_path: Path) -> None:
    (root / "nanochat/gpt.py").write_text(f"PHRASE = {LINES!r}\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a phrase")
    before = side(root, tmp_path)
    (root / "nanochat/gpt.py").write_text(f"PHRASE = {LINES!r}\nMORE = 1\n")
    check_files(before, changed(root, tmp_path), before.code, [LINES])


def test_an_honest_change_passes(root: Path, tmp_path: Path) -> None:
    before = side(root, tmp_path)
    (root / "nanochat/gpt.py").write_text("# better\n")
    (root / "README.md").write_text("said\n")
    check_files(before, changed(root, tmp_path), before.code, [SEALED])


def test_links_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "nanochat/link.py").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match=r"nanochat/link.py is a link"):
        changed(root, tmp_path)


def test_flags_that_the_trial_sets_are_refused() -> None:
    assert check_flags("--model=reference,backout=false --matrix_lr=0.03 --fp8", "--flags") == [
        "--model=reference,backout=false",
        "--matrix-lr=0.03",
        "--fp8",
    ]
    for flag in ("--seed=7", "--num_iterations=900", "--data=/tmp/mine", "-g=other"):
        with pytest.raises(Refused, match=r"^refused, budget: .* is set by the trial"):
            check_flags(flag, "--candidate")
    for word in ("seed=7", "--=3", "--a/b"):
        with pytest.raises(UserError, match="is no flag"):
            check_flags(word, "--candidate")
    with pytest.raises(UserError, match=r"^--candidate=--a='b cannot be read as flags: no closing quotation$"):
        check_flags("--a='b", "--candidate")


def test_every_flag_that_is_set_exists() -> None:
    from scripts.base_train import Config

    own = {name.replace("_", "-") for name in Config.__dataclass_fields__}
    assert set(sides.OWN_FLAGS) - own == {"g", "no-compile"}  # another spelling of tag and of compile


def test_no_repository_and_no_commit_are_one_sentence(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no git repository"):
        commit_of(tmp_path, "HEAD")
    with pytest.raises(UserError, match="nowhere is no commit of"):
        commit_of(root, "nowhere")
    with pytest.raises(UserError, match="--output=/tmp/x is no commit of"):
        commit_of(root, "--output=/tmp/x")
