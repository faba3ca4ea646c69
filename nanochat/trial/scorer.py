"""A scorer at work in the sandbox: it is asked for probabilities, and is not trusted.

`scorer.py` in the entry's folder defines `load()`, which returns an object with

- vocabulary: the bytes of each token, as a list; b"" for a mark.
- context, stride: the most tokens of one question, and the places that it asks to score; stride <= context.
- encode(text: bytes) -> list[int]: the tokens of a document, whose bytes are the text; in another process than scores.
- log_probs(ids: list[int], first: int): an array (len(ids) + 1 - first, len(vocabulary)) of natural logarithms; row i
  has the probability of each token at place first + i, given the tokens before that place. The last place comes after
  all of ids. It is asked about any tokens, true ones and others, and answers the same question in the same way.
- learn(ids: list[int], first: int), if it likes: these are true, those from `first` on have their scores, and may be
  learned from.

The process sees copies of the folder's files, Python and the system's files, and numpy and torch with what they need.
It begins in the copy of the folder, so `np.load("weights.npz")` finds a file there; it can write to /tmp alone. The
sandbox maps no files: `mmap_mode` of `np.load` and `mmap` of `torch.load` fail.
"""

import json
import os
import re
import select
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from nanochat.cores import most_threads
from nanochat.errors import UserError
from nanochat.evals import sandbox

PACKAGES = ("numpy", "torch")
SCORER = "scorer.py"
MOST_CONTEXT = 65_536
MOST_CELLS = 2**26  # numbers in an answer: stride x vocabulary
MOST_TOKENS = 320 * 2**10  # of a vocabulary: with more, too few rows could be kept to be compared
MOST_MARKS = 16  # tokens of a document beyond its bytes
MOST_ABOUT = 2**26  # bytes of what an entry says about itself
MEMORY = 2**35  # address space; the libraries reserve far more than they use
PROCESSES = 64  # and threads; more where there are many cores
LOADING = 120.0  # seconds for imports and weights, beside the time for answers
MOST_WORDS = 2**16  # bytes of an error
ENDING = 3.0  # seconds to wait for the last words of a process that has ended
LEAVING = 30.0  # seconds that a process may take to end once nothing more is asked
CPUS = "/sys/devices/system/cpu"  # what torch asks the system about

# Kinds of questions. A question is its kind, the length of what follows, and that; an answer begins with 0, or 1 for an
# error, and has a length of eight bytes.
ABOUT, ENCODE, LOG_PROBS, LEARN, END = range(5)
QUESTION = "<BI"
ANSWER = "<BQ"

PROGRAM = """
import json
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path[:0] = {paths}
os.chdir({folder})

def serve() -> None:
    reads, writes = open(READS, "rb"), open(WRITES, "wb")

    def answer(status: int, data: bytes) -> None:
        writes.write(struct.pack("{answer}", status, len(data)))
        writes.write(data)
        writes.flush()

    try:
        import numpy as np
        import scorer
        entry = scorer.load()
    except Exception as error:
        answer(1, f"{{type(error).__name__}}: {{error}}".encode())
        return
    answer(0, b"")
    while head := reads.read({head}):
        kind, size = struct.unpack("{question}", head)
        asked = reads.read(size)
        if kind == {END}:
            return
        try:
            if kind == {ABOUT}:
                words = [bytes(word).hex() for word in entry.vocabulary]
                about = {{"vocabulary": words, "context": int(entry.context), "stride": int(entry.stride)}}
                data = json.dumps(about).encode()
            elif kind == {ENCODE}:
                data = np.asarray(entry.encode(asked), np.int64).tobytes()
            else:
                first, *ids = np.frombuffer(asked, np.int64).tolist()
                if kind == {LOG_PROBS}:
                    data = np.ascontiguousarray(entry.log_probs(ids, first), np.float32).tobytes()
                else:
                    data = b""
                    if hasattr(entry, "learn"):
                        entry.learn(ids, first)
            answer(0, data)
        except Exception as error:
            answer(1, f"{{type(error).__name__}}: {{error}}".encode())
            return

serve()
"""


class Refused(UserError):
    """An entry breaks a rule. check: the rule's name."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(f"refused, {check}: {reason}")
        self.check = check
        self.reason = reason


class Missing(Refused):
    """An entry needs what is not among its files. The reason has words of its process; kind: of its error, has none."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__("bytes", f"it needs what is not among its files ({words})")
        self.kind = kind


class Broken(UserError):
    """An entry does something else than it is asked for: it fails, its process ends, or an answer has another form.

    killed: its process was, by the kernel or by itself.
    """

    def __init__(self, reason: str, killed: bool = False) -> None:
        super().__init__(reason)
        self.killed = killed


@dataclass(frozen=True)
class About:
    """What an entry says about itself."""

    vocabulary: Sequence[bytes]
    context: int
    stride: int


def entry_files(folder: Path) -> dict[str, int]:
    """Return all files of an entry with the bytes of content and name; a UserError without a scorer, or for a link."""
    if not (folder / SCORER).is_file():
        raise UserError(f"{folder} has no {SCORER}: nanochat/trial/scorer.py says what it defines")
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is neither a file nor a folder: an entry has no links")
        name = path.relative_to(folder)
        if path.is_file() and "__pycache__" not in name.parts:
            found[str(name)] = path.stat().st_size + len(os.fsencode(name))  # a name can carry bytes too
    return found


def copy_files(folder: Path, files: Sequence[str], place: Path) -> None:
    """Copy the files that are counted, and nothing else, into a new folder that everybody can read."""
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, place / name)
    for path in [place, *place.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def package_folders(names: Sequence[str] = PACKAGES) -> list[str]:
    """Return the folders where packages are installed: several, in an environment on top of another one."""
    found = [str(metadata.distribution(name).locate_file("")) for name in names]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in found))


def library_paths() -> list[str]:
    """Return the files and folders of PACKAGES and of what they need, in the folder of installed packages."""
    packages = Path(package_folders()[0])
    names = list(PACKAGES)
    tops = set()
    seen = set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system
            continue
        tops |= {path.parts[0] for path in found.files or [] if path.parts[0] not in ("..", "__pycache__")}
        needed = "\n".join(need for need in found.requires or [] if "extra ==" not in need)
        names += re.findall(r"^[\w.-]+", needed, re.MULTILINE)
    return [str(packages / top) for top in sorted(tops) if (packages / top).exists() and not top.endswith(".pth")]


def printable(text: str, most: int = 300) -> str:
    """Return what a process has said, without control characters, and not too much of it."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:most]).strip()


class Scorer:
    """The other side of a conversation with an entry's process. Its time runs from the moment when it is loaded."""

    def __init__(self, asks: int, listens: int, limit: float, verdict: Callable[[float], sandbox.Verdict]) -> None:
        os.set_blocking(asks, False)
        self._asks = asks
        self._listens = listens
        self._verdict = verdict
        self._limit = LOADING
        self._started = time.monotonic()
        self._receive(0)  # once it is loaded
        self._limit = limit
        self._started = time.monotonic()
        self.asked = 0.0  # of its seconds: from a question to the end of its answer

    @property
    def seconds(self) -> float:
        """Since it was loaded. It may compute while the judge does its arithmetic, so that counts as well."""
        return time.monotonic() - self._started

    def about(self) -> About:
        said = self._ask(ABOUT, most=MOST_ABOUT)
        try:
            found = json.loads(said)
            words = [bytes.fromhex(word) for word in found["vocabulary"]]
            context, stride = int(found["context"]), int(found["stride"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Broken(f"{SCORER}: what it says about itself cannot be read") from None
        possible = 1 <= len(words) <= MOST_TOKENS and 1 <= stride <= context <= MOST_CONTEXT
        if not possible or stride * len(words) > MOST_CELLS:
            raise Broken(
                f"{SCORER}: it needs a vocabulary of at most {MOST_TOKENS:,} tokens, 1 <= stride <= context <="
                f" {MOST_CONTEXT:,}, and at most {MOST_CELLS:,} numbers in an answer"
            )
        return About(words, context, stride)

    def encode(self, text: bytes) -> list[int]:
        data = self._ask(ENCODE, text, most=8 * (len(text) + MOST_MARKS))
        if len(data) % 8:
            raise Broken(f"{SCORER}: encode gave {len(data)} bytes, which are no tokens")
        return np.frombuffer(data, np.int64).tolist()

    def log_probs(self, ids: Sequence[int], first: int, vocab_size: int) -> np.ndarray:
        shape = len(ids) + 1 - first, vocab_size
        expected = 4 * shape[0] * shape[1]
        data = self._ask(LOG_PROBS, np.array([first, *ids], np.int64).tobytes(), most=expected)
        if len(data) != expected:
            raise Broken(f"{SCORER}: log_probs gave {len(data) // 4:,} numbers, not {shape[0]:,} x {shape[1]:,}")
        return np.frombuffer(data, np.float32).reshape(shape)

    def learn(self, ids: Sequence[int], first: int) -> None:
        self._ask(LEARN, np.array([first, *ids], np.int64).tobytes())

    def end(self) -> sandbox.Verdict:
        """Let the process end by itself: what it has used is known after that."""
        with suppress(BrokenPipeError, BlockingIOError):  # it has ended, or does not listen
            os.write(self._asks, struct.pack(QUESTION, END, 0))
        return self._verdict(LEAVING)

    def _ask(self, kind: int, data: bytes = b"", most: int = 0) -> bytes:
        began = self.seconds
        left = memoryview(struct.pack(QUESTION, kind, len(data)) + data)
        while left:
            self._wait([], [self._asks])
            try:
                left = left[os.write(self._asks, left) :]
            except BrokenPipeError:
                raise self._ended() from None
        answer = self._receive(most)
        self.asked += self.seconds - began
        return answer

    def _receive(self, most: int) -> bytes:
        """Return an answer of at most so many bytes; larger ones are not read."""
        status, size = struct.unpack(ANSWER, self._read(struct.calcsize(ANSWER)))
        if size > max(most, MOST_WORDS if status else 0):
            raise Broken(f"{SCORER}: an answer of {size:,} bytes, where {most:,} were asked for")
        data = self._read(size)
        if status:
            raise self._error(printable(data.decode(errors="replace")))
        return data

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            self._wait([self._listens], [])
            part = os.read(self._listens, min(size, 2**20))
            if not part:
                raise self._ended()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, reads: list[int], writes: list[int]) -> None:
        left = self._limit - self.seconds
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            raise Refused("time", f"it takes longer than {self._limit:g} s")

    def _ended(self) -> Broken:
        ended = self._verdict(ENDING)
        last = ended.output.strip().splitlines()[-1:] or ["it printed nothing"]
        return Broken(f"{SCORER}: its process has ended: {printable(last[0])}", ended.killed)

    @staticmethod
    def _error(reason: str) -> UserError:
        missing = re.match(r"(ModuleNotFoundError|FileNotFoundError|PermissionError)\b", reason)
        if missing:
            return Missing(missing[1], reason)
        return Broken(f"{SCORER}: {reason}")


@contextmanager
def scorer(place: Path, seconds: float, unsafe: bool, more: Sequence[str] | None = None) -> Iterator[Scorer]:
    """Start a process with an entry's files. seconds: from the moment when it is loaded.

    more: what it can read beside them and the system's files; None: numpy and torch.
    """
    program = PROGRAM.format(
        paths=[str(place), *package_folders()],
        folder=repr(str(place)),
        answer=ANSWER,
        question=QUESTION,
        head=struct.calcsize(QUESTION),
        ABOUT=ABOUT,
        ENCODE=ENCODE,
        LOG_PROBS=LOG_PROBS,
        END=END,
    )
    whole = seconds + 2 * LOADING  # the judge ends it before
    most = most_threads(PROCESSES)
    limits = sandbox.Limits(seconds=whole, cpu_seconds=int(most * whole), memory=MEMORY, processes=most)
    libraries = library_paths() if more is None else more
    readable = [str(place), *libraries, CPUS]
    with sandbox.conversation(program, limits, unsafe, readable) as (asks, listens, verdict):
        yield Scorer(asks, listens, seconds, verdict)
