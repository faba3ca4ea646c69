"""The interface file: `tests/interface.txt` has what this code promises its users, one line a promise.

    python tests/interface.py             say which lines are new, and which are gone
    python tests/interface.py --write     add the new lines to tests/interface.txt
    python tests/interface.py --release   do that, and leave out the lines that CHANGELOG.md says are gone

`promises.py` finds the promises in the source. New ones are added to the file. A line whose promise is gone stays there
until a release, and needs an entry in CHANGELOG.md under one of these headings:

    ### Removed
    - `scripts.golf_pack --calibration`: the number never mattered, the packer reads 65,536 tokens.
    ### Renamed
    - `python -m scripts.golf_train` is `python -m tracks.golf.train`

A name covers what it contains: the rename of a command holds for all its flags, which are looked up under the new name,
and the removal of a command removes its flags. `*` stands for anything within a name: `scripts.* --ema`. A name may be
given with its kind, as in the file: `metric Epochs`. Entries that do not begin with a name in backticks are for people
alone.
"""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from promises import KINDS, interface, ordered
from source_tree import git

ROOT = Path(__file__).resolve().parent.parent
LISTED = "tests/interface.txt"
CHANGES = "CHANGELOG.md"
COMMAND = "python tests/interface.py --write"
HEADER = f"""\
# What this code promises its users, one line a promise. Format 1. Written by `{COMMAND}`.
# A line whose promise is gone needs an entry in CHANGELOG.md with the reason; tests/interface.py describes it.
"""

# ---- the file ----


def text_of(lines: Iterable[str]) -> str:
    """Return the content of tests/interface.txt: the lines under a heading for each kind."""
    parts = [HEADER]
    for kind, own in groupby(ordered(lines), key=lambda line: line.partition(" ")[0]):
        parts.append("\n".join([f"# {KINDS[kind]}", *own]) + "\n")
    return "\n".join(parts)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# ---- changes ----


class Changes(NamedTuple):
    """What CHANGELOG.md says about promises. unclear: sentences about entries that nobody can check."""

    removed: list[str]  # names
    renamed: list[tuple[str, str]]  # old name, new name
    unclear: list[str]


def read_changes(text: str) -> Changes:
    """Return the entries under the headings Removed and Renamed."""
    found = Changes([], [], [])
    heading = ""
    # An entry may go on in indented lines.
    for line in re.sub(r"\n +(?=\S)", " ", text).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif heading == "Removed" and line.startswith("- `"):
            # A colon within a name does not end the names.
            names, reason = re.fullmatch(r"((?:`[^`]*`|[^`:])*):? ?(.*)", line).groups()
            if len(reason.split()) < 3:
                found.unclear.append(f'{CHANGES}: an entry is "- `name`: the reason", not: {line}')
            found.removed.extend(plain(name) for name in re.findall(r"`([^`]+)`", names))
        elif heading == "Renamed" and line.startswith("- "):
            entry = re.match(r"- ((?:`[^`]+`(?:, | and )?)+) (?:is|are) `([^`]+)`", line)
            if entry:
                found.renamed.extend((plain(old), plain(entry[2])) for old in re.findall(r"`([^`]+)`", entry[1]))
            else:
                found.unclear.append(f'{CHANGES}: an entry is "- `old name` is `new name`", not: {line}')
    return found


def plain(name: str) -> str:
    return name.removeprefix("python -m ")


def beyond(name: str, line: str) -> str | None:
    """Return what a line has beyond a name of CHANGELOG.md, such as a flag; None if the name does not cover it."""
    kind, _, rest = name.partition(" ")
    whole = line if kind in KINDS and rest else line.partition(" ")[2]
    found = re.match(re.escape(name).replace(r"\*", ".*?") + r"(?=$|[ .:=/,|])(.*)", whole)
    return found[1] if found else None


def names_of(line: str, changes: Changes) -> list[str]:
    """Return a line, and the lines that it may be after the renames."""
    found = [line]
    for one in found:  # the list grows: a new name may have been renamed again
        kind = one.partition(" ")[0]
        for old, new in changes.renamed:
            rest = beyond(old, one)
            if rest is None:
                continue
            renamed = new + rest if new.partition(" ")[0] == kind else f"{kind} {new}{rest}"
            if renamed not in found:
                found.append(renamed)
    return found


def lost(listed: Iterable[str], made: Iterable[str], changes: Changes) -> list[str]:
    """Return the lines whose promise is neither kept nor, as CHANGELOG.md says, taken back."""
    kept = set(made)
    found = []
    for line in listed:
        names = names_of(line, changes)
        removed = any(beyond(name, one) is not None for name in changes.removed for one in names)
        if kept.isdisjoint(names) and not removed:
            found.append(line)
    return found


def untrue(made: Iterable[str], changes: Changes) -> list[str]:
    """Return sentences about entries that the code contradicts: what was removed is there, or a new name is not."""
    lines = list(made)
    found = []
    for name in changes.removed:
        there = [line for line in lines if beyond(name, line) == ""]
        found += [f"{CHANGES} says that {name} is removed, but it is there: {line}" for line in there]
    renamed_again = {old for old, _ in changes.renamed}
    for old, new in changes.renamed:
        if new not in renamed_again and all(beyond(new, line) is None for line in lines):
            found.append(f"{CHANGES} says that {old} is {new}, which is not there")
    return found


# ---- a checkout ----


def earlier_lines(root: Path) -> list[str]:
    """Return the lines that the file had in the last commit and its parents: nobody deletes lines by hand.

    A file with another header, so of another format, does not count.
    """
    found = []
    for commit in (git(root, "rev-parse", "HEAD", "HEAD^@") or "").split():
        text = git(root, "show", f"{commit}:{LISTED}")
        if text and text.startswith(HEADER):
            found += lines_of(text)
    return ordered(found)


def missing_tracks(root: Path, lines: Iterable[str]) -> set[str]:
    """Return the tracks that lines name and this tree lacks, though the last commit has them or there is no git.

    Such a tree is a copy without a track, as the deletion test makes it. A commit without the track has to say so.
    """
    named = {name for line in lines for name in re.findall(r"\btracks[./](\w+)", line)}
    absent = {name for name in named if not (root / "tracks" / name).is_dir()}
    has_commits = git(root, "rev-parse", "HEAD") is not None
    return {name for name in absent if not has_commits or git(root, "ls-tree", "HEAD", f"tracks/{name}")}


def of_the_trunk(lines: Iterable[str], changes: Changes) -> list[str]:
    """Return the lines that surely belong to no track: a figure, a key or a variable does not say whose it is."""
    kinds = ("command ", "flag ", "file ", "route ")
    return [line for line in lines if line.startswith(kinds) and "tracks" not in "".join(names_of(line, changes))]


def faults(root: Path, made: list[str]) -> list[str]:
    """Return a sentence for each fault of a checkout whose promises are `made`; none if all is well."""
    listed = lines_of((root / LISTED).read_text(encoding="utf-8"))
    changes = read_changes((root / CHANGES).read_text(encoding="utf-8"))
    new = ordered(set(made) - set(listed))
    found = [f"new, not in {LISTED}: {line} (`{COMMAND}` writes it there)" for line in new]
    found += changes.unclear
    promised = ordered([*listed, *earlier_lines(root)])
    if missing_tracks(root, promised):
        promised = of_the_trunk(promised, changes)
    else:
        found += untrue(made, changes)
    gone = lost(promised, made, changes)
    advice = f"bring it back, or give it an entry in {CHANGES} under Removed or Renamed"
    return found + [f"gone: {line} ({advice})" for line in gone]


def main(words: list[str]) -> None:
    if set(words) - {"--write", "--release"}:
        raise SystemExit(__doc__)
    made = interface(ROOT)
    path = ROOT / LISTED
    if words:
        listed = lines_of(path.read_text(encoding="utf-8")) if path.exists() else []
        if "--release" in words:
            listed = lost(listed, made, read_changes((ROOT / CHANGES).read_text(encoding="utf-8")))
        path.write_text(text_of([*listed, *made]), encoding="utf-8")
    found = faults(ROOT, made)
    print(*found, f"{len(made):,} promises, {len(found)} to be settled", sep="\n")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # this checkout's code, whichever one is installed
    main(sys.argv[1:])
