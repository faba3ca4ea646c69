"""The two sides of a trial as folders of code: a commit, the working tree, or flags for the incumbent's code.

A folder has the name of its content's hash, so a change of the tree after a trial began changes nothing of it.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nanochat.errors import UserError
from nanochat.paths import new_folder, text_sha256
from nanochat.trial.scorer import Refused, printable

CODE = ("nanochat", "scripts", "tasks", "tracks", "rustbpe")  # folders that decide a run
# What judges: the referee runs its own copy, and a candidate that changes these files is refused.
FROZEN = (
    "scripts/trial.py",
    "nanochat/trial/",
    "nanochat/evals/",
    "nanochat/world/",
    "nanochat/data/",
    "nanochat/statistics.py",
)
BESIDE = ("pyproject.toml", "requirements.lock")  # files that a run may read
BUILT = ("rustbpe/",)  # is compiled when the project is installed: another version of it would not run
MOST_CHANGED = 4 * 2**20  # bytes of files that the working tree changes, and characters of the diff
# Files, for git ls-files.
KNOWN = ("-z", "--cached")
NEW = ("-z", "--others", "--exclude-standard")
CHANGED = ("--modified", *NEW)
# A diff that no setting of the user's git has changed.
OWN_DIFF = (
    "--cached",
    "--binary",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "-U3",
    "--diff-algorithm=myers",
    "--no-renames",
)
# Flags that the trial sets.
OWN_FLAGS = (
    "seed num-iterations target-flops target-seconds target-param-data-ratio data num-shards tokenizer-tag tag g "
    "resume eval-every eval-bytes core-metric-every sample-every save-every keep-last device-type dtype dry-run on json"
    " vocab-size lanes run tracker max-seq-len compile no-compile depth"
).split()
LEAKED = 40  # letters and digits: of a copy of a sealed document, every one of twice so many in a row is found
# An escape of a string in Python or JSON: the number of a character, or one letter.
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)")


@dataclass(frozen=True)
class Side:
    """One side: a folder of code, and flags of scripts.base_train."""

    name: str  # for people
    commit: str
    code: Path
    flags: Sequence[str] = ()
    diff: str = ""  # from the commit to the code

    @property
    def key(self) -> str:
        """Return what decides its runs: the hash of the code, and the flags."""
        return text_sha256(json.dumps([self.code.name, *self.flags]))[:16]


def git(root: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what git prints; a UserError with its reason if it fails."""
    try:
        done = subprocess.run(
            # In a container, a checkout may be another user's.
            ["git", "-c", "safe.directory=*", "-C", str(root), *words],
            capture_output=True,
            env={**os.environ, **variables},
        )
    except FileNotFoundError:
        raise UserError("git is not installed: a trial compares commits, and needs it") from None
    # Not as text, whose ends of lines would all become "\n": a diff has those of the files.
    told, complaint = (stream.decode(errors="surrogateescape") for stream in (done.stdout, done.stderr))
    if done.returncode:
        said = [re.sub("^(fatal|error): ", "", line) for line in complaint.splitlines() if not line.startswith("hint:")]
        raise UserError(f"git {words[0]} in {root}: {'; '.join(filter(None, said)) or 'it failed'}")
    return told


def commit_of(root: Path, name: str) -> str:
    """Return the full hash of a commit; a UserError if there is no such commit, or no repository."""
    if not (root / ".git").exists():
        raise UserError(f"{root} is no git repository: a trial compares commits; git init, git add -A, git commit")
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except UserError:
        raise UserError(f"{name} is no commit of {root}") from None


def committed(root: Path, commit: str, folders: Path) -> Path:
    """Return the folder with the code of a commit."""
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary, "code.tar")
        git(root, "archive", f"--output={archive}", commit)
        place = Path(temporary, "code")
        shutil.unpack_archive(archive, place)
        return _kept(place, folders)


def working_tree(root: Path, folders: Path) -> tuple[Path, str]:
    """Return the folder with the code as it is now, new files that git does not ignore too, and the diff to HEAD.

    Files that decide no run are left out: they may be large, or secret, and the diff goes into the ledger.
    """
    with tempfile.TemporaryDirectory() as temporary:
        index = Path(temporary, "index")
        own = Path(git(root, "rev-parse", "--git-path", "index").strip())
        own = own if own.is_absolute() else root / own
        if own.exists():
            shutil.copy2(own, index)  # with its time: git reads files again that changed in the same second
        variables = {"GIT_INDEX_FILE": str(index)}
        _check_size(root, git(root, "ls-files", *CHANGED, "--", *CODE, *BESIDE, variables=variables).split("\0"))
        for option, which in (("--update", KNOWN), ("--all", NEW)):
            files = git(root, "ls-files", *which, "--", *CODE, *BESIDE, variables=variables).split("\0")
            names = sorted({name.partition("/")[0] for name in files if name})
            if names:  # git add fails where there is no such file, or none that git does not ignore
                git(root, "add", option, "--", *names, variables=variables)
        tree = git(root, "write-tree", variables=variables).strip()
        diff = git(root, "diff", *OWN_DIFF, "HEAD", "--", *CODE, *BESIDE, variables=variables)
        if len(diff) > MOST_CHANGED:  # as with files that were staged before
            raise UserError(
                f"the diff of the working tree to HEAD has {len(diff):,} characters, and a trial takes"
                f" {MOST_CHANGED:,}: move large files elsewhere, or commit them"
            )
        return committed(root, tree, folders), diff


def _check_size(root: Path, names: Collection[str]) -> None:
    """Raise a UserError for more changed code than a ledger should take."""
    sizes = {name: (root / name).lstat().st_size for name in names if (root / name).is_file()}
    if sum(sizes.values()) > MOST_CHANGED:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UserError(
            f"the files that the working tree changes have {sum(sizes.values()):,} bytes, {printable(largest)} most of"
            f" them, and a trial takes {MOST_CHANGED:,}: move it elsewhere, or let .gitignore name it"
        )


def _kept(place: Path, folders: Path) -> Path:
    """Copy the code of a folder below `folders`, named by its hash; one that is there already stays."""
    files = code_files(place)
    home = folders / _content_name(place, files)
    if home.exists():
        check_unchanged(home)
    else:
        with new_folder(home) as part:
            for path in [*files, *filter(Path.is_file, map(place.joinpath, BESIDE))]:
                target = part / path.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
            for path in [part, *part.rglob("*")]:  # the sandbox's user reads it
                path.chmod(0o755 if path.is_dir() else 0o644)
    return home


def _content_name(place: Path, files: Sequence[Path]) -> str:
    """Return the name of a folder with these files: a hash of their names and contents."""
    digest = hashlib.sha256()
    for path in files:
        for part in (str(path.relative_to(place)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()[:16]


def check_unchanged(home: Path) -> None:
    """Raise a UserError if a kept folder has not the content that its name says, or more than that."""
    files = code_files(home)
    # A compiled file, or a module beside the code, would run in place of what was hashed.
    others = {path for path in home.rglob("*") if path.is_file()} - {*files, *map(home.joinpath, BESIDE)}
    if others or _content_name(home, files) != home.name:
        raise UserError(f"{home} was changed after it was copied: begin another series with --series=NAME")


def code_files(place: Path) -> list[Path]:
    """Return the files that decide a run; a UserError for links, which may lead anywhere."""
    found = []
    tops = [place / name for name in (*CODE, *BESIDE)]
    for path in [*tops, *sorted(path for top in tops[: len(CODE)] for path in top.rglob("*"))]:
        if path.is_symlink():
            raise UserError(f"{printable(str(path.relative_to(place)))} is a link: a trial runs files alone")
        if path.is_file() and "__pycache__" not in path.parts and path not in tops:
            found.append(path)
    return found


def changed_files(one: Path, other: Path) -> list[str]:
    """Return the names of code files that differ, or that one side lacks."""
    names = {str(path.relative_to(place)) for place in (one, other) for path in code_files(place)}
    return [name for name in sorted(names) if _content(one / name) != _content(other / name)]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def check_incumbent(incumbent: Side, referee: Path) -> None:
    """Raise a UserError if the incumbent has other files than the code that judges where they are frozen."""
    for name in changed_files(referee, incumbent.code):
        if name.startswith(FROZEN):
            raise UserError(
                f"{printable(name)} of the incumbent {incumbent.name} is not that of the commit that this series began"
                " with: begin another series with --series=NAME"
            )


def check_files(incumbent: Side, candidate: Side, referee: Path, sealed: Sequence[str]) -> None:
    """Raise Refused if a candidate changes what judges it, or contains text that it is judged by.

    referee: the code that judges. sealed: documents that no side may see. They are found as plain text and as strings
    of Python and JSON, whatever stands between their words; not in another encoding, as base64.
    """
    changed = changed_files(referee, candidate.code)
    for name in changed:
        if name.startswith(FROZEN):
            raise Refused("frozen", f"{printable(name)} is part of the referee: it is not the candidate's to change")
    for name in changed_files(incumbent.code, candidate.code):
        if name.startswith(BUILT):
            raise Refused(
                "frozen", f"{printable(name)} is compiled when the project is installed: install it, then ask again"
            )
    wanted = {text[start : start + LEAKED] for text in map(_letters, sealed) for start in _starts(text, LEAKED)}
    for name in changed:
        # A phrase that the referee's own file has, as templates of the world do, was not copied from a document.
        if _pieces(candidate.code / name, wanted) - _pieces(referee / name, wanted):
            raise Refused("text", f"{printable(name)} contains text that the candidate is judged by")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _starts(text: str, stride: int) -> range:
    return range(0, len(text) - LEAKED + 1, stride)


def _pieces(path: Path, wanted: Collection[str]) -> set[str]:
    """Return which of the wanted pieces a file contains, as it stands or in its strings."""
    plain = (_content(path) or b"").decode(errors="ignore")
    written = (_letters(text) for text in dict.fromkeys((plain, ESCAPE.sub(_character, plain))))
    return {
        piece for text in written for start in _starts(text, 1) if (piece := text[start : start + LEAKED]) in wanted
    }


def _character(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for; none for a line's end and others that are no letters."""
    number = escape[1] or escape[2] or escape[3]
    return chr(min(int(number, 16), 0x10FFFF)) if number else ""


def check_flags(text: str, asked: str) -> list[str]:
    """Return the flags of a side; Refused for one that the trial sets. asked: the flag that they are the value of."""
    flags = []
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quote that is not closed
        raise UserError(f"{asked}={text} cannot be read as flags: {str(error).lower()}") from None
    for word in words:
        if not word.startswith("-"):
            raise UserError(f"{word} is no flag: write flags as --name=value")
        flag, equals, value = word.partition("=")
        flag = flag.lstrip("-").replace("_", "-")
        if flag in OWN_FLAGS:
            raise Refused("budget", f"--{flag} is set by the trial, for both sides alike")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", flag):
            raise UserError(f"{word} is no flag: write flags as --name=value")
        flags.append(f"--{flag}{equals}{value}")
    return flags
