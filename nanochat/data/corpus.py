"""Text corpora: data sets by name, folders of text, and mixes, as parquet shards with some text held out.

`--data` is one of
  climbmix, fineweb-edu, …    a data set on the hub, see CORPORA; shards are downloaded
  world                       the embedded world, written by this repository
  python                      the standard library for the running Python
  my-text, folder:my-text     a folder with text files, converted to shards once
  auto                        the first data set in AUTO already on this machine, else world
  climbmix:0.7,my-text:0.3    a mix by token shares
"""

import hashlib
import math
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nanochat.data import hub
from nanochat.data.documents import TEXT, Damaged, Problems, convert_folder, open_parquet, read_row_group, text_files
from nanochat.data.hub import HubFile, once_a_node
from nanochat.log import print0
from nanochat.paths import read_sha256


@dataclass(frozen=True)
class HubCorpus:
    """A data set on the hub: `count` training shards, `default` used unless asked for more, and a validation shard."""

    repo: str
    count: int
    default: int
    validation: str
    path: Callable[[int], str] = "shard_{:05d}.parquet".format

    def files(self, num_shards: int = 0) -> list[HubFile]:
        """Return the files for a run, the validation shard last; num_shards: 0 for the default."""
        if not 0 <= num_shards <= self.count:
            raise ValueError(f"--num-shards={num_shards} is out of range, {self.repo} has {self.count:,}")
        paths = [self.path(number) for number in range(num_shards or self.default)]
        return [HubFile(path, self.repo) for path in [*paths, self.validation]]


def _korean_path(number: int) -> str:
    # Upstream splits each of five files into five parts.
    return f"data/kor_Hang/train/{number // 5:03d}_{number % 5:05d}.parquet"


CORPORA = {
    # 400 B tokens: web text, code and mathematics, shuffled; a shard has 250 M characters.
    "climbmix": HubCorpus(
        repo="karpathy/climbmix-400b-shuffle",
        count=6542,
        default=8,
        validation="shard_06542.parquet",
    ),
    # 100 B tokens: educational web pages, shuffled; same shard size.
    "fineweb-edu": HubCorpus(
        repo="karpathy/fineweb-edu-100b-shuffle",
        count=1822,
        default=8,
        validation="shard_01822.parquet",
    ),
    # Korean web pages; a shard has about 4 GB.
    "fineweb2-ko": HubCorpus(
        repo="HuggingFaceFW/fineweb-2",
        count=25,
        default=1,
        validation="data/kor_Hang/test/000_00000.parquet",
        path=_korean_path,
    ),
    # 125 MB: books, documentation, Korean and code; only in a mirror.
    "mixed-text": HubCorpus(
        repo="local/mixed-text",
        count=7,
        default=7,
        validation="shard_00007.parquet",
    ),
}
LOCAL = ("world", "python")  # sources made on this machine
AUTO = ("climbmix", "mixed-text")
BYTES_PER_TOKEN = 5  # upper estimate, to choose the number of shards


# ---- a corpus ----


@dataclass(frozen=True)
class Shard:
    """A parquet file with documents, as found when opened.

    hash: SHA-256 of the file. size: text bytes before compression; a dictionary holds repeated texts once.
    stamp: file size and modification time.
    """

    path: Path
    row_groups: int
    rows: int
    hash: str
    size: int
    stamp: tuple[int, int]

    def read(self, group: int) -> pa.Array:
        """Return the documents in one row group; Damaged if the file has changed."""
        # Hashing again is slow, but a file that was only touched is still good.
        if _stamp(self.path) != self.stamp and read_sha256(self.path) != self.hash:
            raise Damaged(f"{self.path} has changed since this run began, restore it or start a new run")
        with open_parquet(self.path) as parquet:
            texts = read_row_group(parquet, group, self.path)
        if texts.null_count:
            raise Damaged(f"{self.path} has {texts.null_count} nulls in row group {group}, write it without them")
        return texts


def open_shards(paths: Sequence[Path], problems: Problems) -> tuple[Shard, ...]:
    """Open shards and hash their content; damaged ones are added to the problems."""
    with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
        opened = [pool.submit(_open_shard, path) for path in paths]
    shards = []
    # In the order of the paths, so that the corpus is the same every time.
    for shard in opened:
        with problems.caught():
            shards.append(shard.result())
    return tuple(shards)


def _open_shard(path: Path) -> Shard:
    with open_parquet(path) as parquet:
        metadata = parquet.metadata
        stamp = _stamp(path)
    if not metadata.num_rows:
        raise Damaged(f"{path} holds no document")
    size = 0
    # Other columns are not read, and do not count.
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema == TEXT:
                size += column.total_uncompressed_size
    return Shard(
        path=path,
        row_groups=metadata.num_row_groups,
        rows=metadata.num_rows,
        hash=hub.sha256(path),
        size=size,
        stamp=stamp,
    )


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Source:
    """One part of a corpus: a share of the tokens, and ordered shards for training and validation."""

    name: str
    share: float
    train: tuple[Shard, ...]
    val: tuple[Shard, ...]

    def shards(self, split: str) -> tuple[Shard, ...]:
        # Any other split is a mistake in the program: KeyError.
        return {"train": self.train, "val": self.val}[split]


@dataclass(frozen=True)
class Corpus:
    """Text sources with shares that sum to 1. problems: collects damage found while reading."""

    sources: tuple[Source, ...]
    problems: Problems = field(default_factory=Problems, compare=False)

    @property
    def name(self) -> str:
        if len(self.sources) == 1:
            return self.sources[0].name
        return "+".join(f"{source.name}:{source.share:.2g}" for source in self.sources)

    @property
    def size(self) -> int:
        """Text bytes, approximately: a shard counts repeated texts once."""
        return sum(shard.size for _, _, shard in self._shards())

    def batches(self, split: str) -> Iterator[pa.Array]:
        """Yield the documents in "train" or "val" as Arrow string arrays, one for each row group.

        In a mix the source furthest behind its share comes next, by bytes, until all have ended.
        """
        streams = [self._row_groups(source.shards(split)) for source in self.sources]
        progress = dict.fromkeys(range(len(streams)), 0.0)  # bytes so far, divided by the share
        while progress:
            behind = min(progress, key=progress.__getitem__)
            batch = next(streams[behind], None)
            if batch is None:
                del progress[behind]
            else:
                progress[behind] += batch.nbytes / self.sources[behind].share
                yield batch

    def _row_groups(self, shards: Sequence[Shard]) -> Iterator[pa.Array]:
        for shard in shards:
            for group in range(shard.row_groups):
                # Damage skips this row group only.
                with self.problems.caught():
                    yield shard.read(group)

    def describe(self) -> dict[str, str | int]:
        """Return name, counts and content hashes for records, without any path on this machine."""
        shards = self._shards()
        contents = [f"{split} {source.share:.6f} {shard.hash}" for source, split, shard in shards]
        # Validation alone too: losses on the same validation text can be compared.
        held_out = [shard.hash for _, split, shard in shards if split == "val"]
        return {
            "name": self.name,
            "files": len(shards),
            "bytes": self.size,
            "documents": sum(shard.rows for _, _, shard in shards),
            "fingerprint": hashlib.sha256("\n".join(contents).encode()).hexdigest(),
            "validation": hashlib.sha256("\n".join(held_out).encode()).hexdigest(),
        }

    def manifest(self) -> list[dict]:
        """Return an entry for every shard, for the manifest of a run."""
        return [
            {
                "source": source.name,
                "split": split,
                "file": shard.path.name,
                "revision": hub.revision(shard.path),
                "rows": shard.rows,
                "size": shard.stamp[0],
                "sha256": shard.hash,
            }
            for source, split, shard in self._shards()
        ]

    def _shards(self) -> list[tuple[Source, str, Shard]]:
        """Return every shard with source and split, in order."""
        shards = []
        for source in self.sources:
            for split in ("train", "val"):
                shards += [(source, split, shard) for shard in source.shards(split)]
        return shards


def open_corpus(
    data: str,
    num_shards: int = 0,
    offline: bool = False,
    skip_bad: bool = False,
) -> Corpus:
    """Return the corpus for `--data`; downloads or converts missing files, and opens all shards.

    num_shards: training shards for each data set on the hub, 0 for the default. skip_bad: leave out damaged files and
    rows instead of raising a ValueError.
    """
    problems = Problems(skip_bad, log=True)
    parts = parse_data(data)
    if data == "auto":
        print0(f"data: {parts[0][0]} is what --data=auto finds")
    sources = []
    for source, share in parts:
        paths = shard_files(source, num_shards, offline, skip_bad)
        # The last shard is always for validation.
        train = open_shards(paths[:-1], problems)
        val = open_shards(paths[-1:], problems)
        name = source_name(source)
        if not train or not val:
            raise ValueError(f"--data: {name} has no undamaged shard for {'val' if train else 'train'}")
        sources.append(Source(name, share, train, val))
    # A repeated shard would make the validation loss meaningless.
    held_out = {shard.hash: shard.path for source in sources for shard in source.val}
    for source in sources:
        for shard in source.train:
            if shard.hash in held_out:
                raise ValueError(f"{shard.path} is for training and validation: it equals {held_out[shard.hash]}")
    return Corpus(tuple(sources), problems)


# ---- from --data to files ----


def parse_data(data: str) -> list[tuple[str, float]]:
    """Return (source, token share) for each part of `--data`; the shares sum to 1."""
    # A folder name may hold commas and colons.
    if Path(data.removeprefix("folder:")).expanduser().is_dir():
        return [(data, 1.0)]
    parts = []
    for word in data.split(","):
        source, _, share = word.strip().rpartition(":")
        try:
            parts.append((source, float(share)))
        # No number after the last colon: the colon belongs to the name.
        except ValueError:
            parts.append((word.strip(), math.nan))
    # A single source has everything, with or without a share.
    if len(parts) == 1:
        parts = [(parts[0][0], 1.0)]
    # The comparison is False for nan too.
    for source, share in parts:
        if not 0 < share < math.inf:
            raise ValueError(f"--data={data}: {source} needs its share of the tokens, like climbmix:0.7,my-text:0.3")
    if len({source for source, _ in parts}) < len(parts):
        raise ValueError(f"--data={data} names a source twice, add up its shares")
    total = math.fsum(share for _, share in parts)
    return [(_auto() if source == "auto" else source, share / total) for source, share in parts]


def _auto() -> str:
    # Never a download: data that a person did not ask for may be large.
    return next((name for name in AUTO if hub.is_here(CORPORA[name].files())), "world")


def source_files(source: str, num_shards: int = 0, offline: bool = False) -> list[Path]:
    """Return the files of a source before conversion; missing files are downloaded, or written (world)."""
    if source in CORPORA:
        return [found.path for found in hub.fetch(CORPORA[source].files(num_shards), offline)]
    if source == "world":
        return text_files(_world_shards(), (".parquet",))
    root = _folder(source)
    # Installed packages differ from machine to machine.
    if source == "python":
        return [file for file in text_files(root, (".py",)) if "site-packages" not in file.parts]
    files = text_files(root)
    if not files:
        raise ValueError(f"--data={source} holds no .parquet, .jsonl, .txt or .md file")
    return files


def shard_files(
    source: str,
    num_shards: int = 0,
    offline: bool = False,
    skip_bad: bool = False,
) -> list[Path]:
    """Return the parquet shards of a source, the validation shard last; a folder is converted once."""
    files = source_files(source, num_shards, offline)
    if source in CORPORA or source == "world":
        return files
    root = _folder(source)
    skip = skip_bad or source == "python"  # a few test files there are not UTF-8 on purpose
    # One process on each node converts. The answer travels to the others as JSON.
    home = once_a_node(
        f"the conversion of {root}",
        lambda: str(
            convert_folder(
                source_name(source),
                root,
                files,
                skip,
            )
        ),
    )
    return sorted(Path(home).glob("*.parquet"))


def hub_files(data: str, num_shards: int = 0) -> list[HubFile]:
    """Return the hub files for `--data`, downloaded or not."""
    named = [CORPORA[source] for source, _ in parse_data(data) if source in CORPORA]
    return [file for corpus in named for file in corpus.files(num_shards)]


def shards_for(data: str, tokens: float) -> int:
    """Return how many shards have text for `tokens` training tokens; 0 if `--data` names no data set on the hub.

    The first shard in each data set gives the shard size, and is downloaded if missing.
    """
    most = 0
    for source, share in parse_data(data):
        if source in CORPORA:
            named = CORPORA[source]
            first = hub.fetch(named.files(1)[:1])
            # All shards of a data set have about the same size.
            [shard] = open_shards([found.path for found in first], Problems())
            wanted = math.ceil(BYTES_PER_TOKEN * tokens * share / shard.size)
            most = max(most, min(named.count, wanted))
    return most


def check_data(data: str) -> None:
    """Raise a ValueError if `--data` names a missing folder; nothing is downloaded or converted."""
    for source, _ in parse_data(data):
        if source not in CORPORA and source not in LOCAL:
            source_files(source)


def source_name(source: str) -> str:
    """Return the short name of a source: for a folder, the last part of the path."""
    return source if source in CORPORA or source in LOCAL else _folder(source).resolve().name


def _folder(source: str) -> Path:
    """Return the folder for a source that is not on the hub."""
    if source == "python":
        return Path(sysconfig.get_path("stdlib"))
    root = Path(source.removeprefix("folder:")).expanduser()
    if root.is_file():
        raise ValueError(f"--data={source} is a file, name its folder")
    if not root.is_dir():
        names = ", ".join([*CORPORA, *LOCAL])
        raise ValueError(f"--data={source} is no folder; the corpora with a name are auto, {names}")
    return root


def _world_shards() -> Path:
    """Return the folder with the shards of the world: from the mirror, else written on this machine."""
    path = "datasets/local/world"
    root = hub.mirror()
    if root is None or not (root / path).is_dir():
        root = hub.world_dir()
        once_a_node("the embedded world", lambda: _write_world(root))
    return root / path


def _write_world(folder: Path) -> None:
    # A process of its own: the data sets of the world are no part of reading text.
    command = [sys.executable, "-m", "nanochat.world", f"--out={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip().removeprefix("error: "))
