"""Text to train on: corpora by name, folders of your own, and mixes of both, as parquet shards with some text held out.

--data is a name of CORPORA or HERE, a folder or `folder:PATH`, `auto`, or a mix by shares of tokens, like
`climbmix:0.7,folder:my-text:0.3`.
"""

import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from nanochat import hub
from nanochat.documents import KINDS, Bad, text_files
from nanochat.folder import convert
from nanochat.hub import Found, HubFile
from nanochat.log import print0
from nanochat.nodes import once_a_node
from nanochat.shards import Shard, open_shards, read_row_group


@dataclass(frozen=True)
class Named:
    """A data set of the hub: `count` shards to train on, of which `default` are taken, and one to validate."""

    repo: str
    count: int
    default: int
    validation: str
    train: Callable[[int], str] = lambda i: f"shard_{i:05d}.parquet"
    column: str = "text"
    revision: str | None = None

    def files(self, num_shards: int = 0) -> list[HubFile]:
        """What a run reads, the validation shard last."""
        if not 0 <= num_shards <= self.count:
            raise ValueError(f"--num-shards={num_shards} is out of range, {self.repo} has {self.count:,}")
        paths = [*(self.train(i) for i in range(num_shards or self.default)), self.validation]
        return [HubFile(path, self.repo, self.revision) for path in paths]


CORPORA = {
    # 400 B tokens of a mix of web text, code and mathematics, shuffled; a shard has 250 M characters.
    "climbmix": Named("karpathy/climbmix-400b-shuffle", 6542, 8, "shard_06542.parquet"),
    # 100 B tokens of educational web pages, shuffled; shards of the same size.
    "fineweb-edu": Named("karpathy/fineweb-edu-100b-shuffle", 1822, 8, "shard_01822.parquet"),
    # Korean web pages; shards of about 4 GB.
    "fineweb2-ko": Named(
        "HuggingFaceFW/fineweb-2",
        25,
        1,
        "data/kor_Hang/test/000_00000.parquet",
        lambda i: f"data/kor_Hang/train/{i // 5:03d}_{i % 5:05d}.parquet",
    ),
    # 125 MB of books, documentation, Korean and code, of a mirror only.
    "mixed-text": Named("local/mixed-text", 7, 7, "shard_00007.parquet"),
}
AUTO = ("climbmix", "mixed-text")  # the first that is on this machine, else the embedded world


@dataclass(frozen=True)
class Source:
    """Shards of one kind, in order: to train on, and to validate."""

    name: str
    column: str
    train: tuple[Shard, ...]
    val: tuple[Shard, ...]


@dataclass(frozen=True)
class Corpus:
    """Sources, each with its share of the tokens; the shares sum to 1. bad: what to do with damaged text."""

    parts: tuple[tuple[Source, float], ...]
    bad: Bad = field(default_factory=lambda: Bad(skip=False), compare=False)

    @property
    def name(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0][0].name
        return "+".join(f"{source.name}:{share:.2g}" for source, share in self.parts)

    @property
    def size(self) -> int:
        """Bytes of text, nearly: a file of many repeats holds, and counts, each once."""
        return sum(shard.size for source, _ in self.parts for shard in source.train + source.val)

    def batches(self, split: str) -> Iterator[pa.Array]:
        """Arrow string arrays of the documents of "train" or "val", a row group each.

        Of a mix, always one of the source that is furthest behind its share, by bytes, until all have ended.
        """
        assert split in ("train", "val"), split
        streams = [[0.0, share, self._row_groups(source, split)] for source, share in self.parts]
        while streams:
            behind = min(streams, key=lambda stream: stream[0])
            batch = next(behind[2], None)
            if batch is None:
                streams.remove(behind)
            else:
                behind[0] += batch.nbytes / behind[1]
                yield batch

    def describe(self) -> dict:
        """What a record says of the data: no path of this machine; hashes of the content of all that is read."""
        splits = [(split, source, share) for source, share in self.parts for split in ("train", "val")]
        shards = [(split, share, shard) for split, source, share in splits for shard in getattr(source, split)]
        listing = "\n".join(f"{split} {share:.6f} {shard.hash}" for split, share, shard in shards)
        held_out = "\n".join(shard.hash for split, _, shard in shards if split == "val")
        return {
            "name": self.name,
            "files": len(shards),
            "bytes": self.size,
            "documents": sum(shard.rows for _, _, shard in shards),
            "fingerprint": hashlib.sha256(listing.encode()).hexdigest(),
            "validation": hashlib.sha256(held_out.encode()).hexdigest(),
        }

    def manifest(self) -> list[dict]:
        """Every file, for the manifest of a run."""
        return [
            {"source": source.name, "split": split, "file": shard.path.name, "revision": hub.revision(shard.path)}
            | {"rows": shard.rows, "size": shard.stamp[0], "sha256": shard.hash}
            for source, _ in self.parts
            for split, shards in (("train", source.train), ("val", source.val))
            for shard in shards
        ]

    def _row_groups(self, source: Source, split: str) -> Iterator[pa.Array]:
        for shard in getattr(source, split):
            for group in range(shard.row_groups):
                try:
                    shard.check()
                    texts = read_row_group(shard, group, source.column)
                except ValueError as error:
                    self.bad(str(error))
                else:
                    yield texts


# ---- from --data to shards ----


@dataclass(frozen=True)
class Listing:
    """The files that a part of --data names; without `val` they are still to be converted, from below `root`."""

    name: str
    train: tuple[Found, ...]
    val: tuple[Found, ...] = ()
    column: str = "text"
    root: Path = Path()
    share: float = 1.0
    skip_bad: bool = False


def open_corpus(data: str, num_shards: int = 0, offline: bool = False, skip_bad: bool = False) -> Corpus:
    """The corpus that --data names, its files fetched or converted where need be, and opened: damage is found here.

    num_shards: of a corpus with a name, to train on; 0 for its default. With skip_bad, what is damaged is left out.
    """
    bad, parts = Bad(skip_bad, tell=True), []
    for listing in find(data, num_shards, offline):
        if listing.val:
            train, val = [found.path for found in listing.train], [found.path for found in listing.val]
        else:
            home = _converted(listing, skip_bad)
            train, val = sorted(home.glob("train-*.parquet")), [home / "val.parquet"]
        source = Source(
            listing.name,
            listing.column,
            *(open_shards(paths, listing.column, bad, hub.sha256) for paths in (train, val)),
        )
        if not source.train or not source.val:
            raise ValueError(f"--data: {listing.name} has no whole shard for {'val' if source.train else 'train'}")
        parts.append((source, listing.share))
    held_out = {shard.hash: shard for source, _ in parts for shard in source.val}
    for shard in (shard for source, _ in parts for shard in source.train):
        if shard.hash in held_out:
            raise ValueError(f"{shard.path} is to train on and to validate: it is {held_out[shard.hash].path}")
    return Corpus(tuple(parts), bad)


def find(data: str, num_shards: int = 0, offline: bool = False) -> list[Listing]:
    """The files that --data names, fetched where they are missing, one listing for each part of a mix."""
    parts = _parse(data)
    total = math.fsum(share for _, share in parts)
    return [replace(_list(source, num_shards, offline), share=share / total) for source, share in parts]


def settle(data: str, num_shards: int = 0) -> str:
    """What `auto` stands for on this machine; any other --data is what it is."""
    if data == "auto":
        data = next((name for name in AUTO if hub.is_here(CORPORA[name].files(num_shards))), "world")
        print0(f"data: {data} is what --data=auto finds")
    return data


def hub_files(data: str, num_shards: int = 0) -> list[HubFile]:
    """What --data names on the hub, fetched or not."""
    return [file for source, _ in _parse(data) if source in CORPORA for file in CORPORA[source].files(num_shards)]


def shards_for(data: str, size: float, offline: bool = False) -> int:
    """How many shards of the corpora with a name that --data names hold `size` bytes of text to train on together.

    Reckoned from the first shard of each, and no more than there are; 0 where nothing has a name.
    """
    parts, most = _parse(settle(data)), 0
    for source, share in parts:
        if source in CORPORA:
            named = CORPORA[source]
            paths = [found.path for found in hub.fetch(named.files(1)[:1], offline)]
            [first] = open_shards(paths, named.column, Bad(skip=False), hub.sha256)
            part = size * share / math.fsum(share for _, share in parts)
            most = max(most, min(named.count, math.ceil(part / first.size)))
    return most


def _parse(data: str) -> list[tuple[str, float]]:
    """(source, share) of each part of a mix; one alone has share 1. A folder's name may hold commas and colons."""
    if Path(data.removeprefix("folder:")).expanduser().is_dir():
        return [(data, 1.0)]
    parts = []
    for word in data.split(","):
        source, _, share = word.strip().rpartition(":")
        try:
            parts.append((source, float(share)))
        except ValueError:
            parts.append((word.strip(), math.nan))
    if len(parts) == 1:
        return [(parts[0][0], 1.0)]
    for source, share in parts:
        if not 0 < share < math.inf:
            raise ValueError(f"--data={data}: {source} needs its share of the tokens, like climbmix:0.7,my-text:0.3")
    if len({source for source, _ in parts}) < len(parts):
        raise ValueError(f"--data={data} names a source twice, add up its shares")
    return parts


def _list(source: str, num_shards: int, offline: bool) -> Listing:
    source = settle(source, num_shards)
    if source in HERE:
        return HERE[source]()
    if source not in CORPORA:
        return _list_folder(source)
    named = CORPORA[source]
    *train, val = hub.fetch(named.files(num_shards), offline)
    return Listing(source, tuple(train), (val,), named.column)


def _list_folder(source: str) -> Listing:
    root = Path(source.removeprefix("folder:")).expanduser()
    if not root.is_dir():
        what = "is a file, name its folder" if root.is_file() else "is no folder"
        raise ValueError(f"--data={source} {what}; the corpora with a name are auto, {', '.join([*CORPORA, *HERE])}")
    files = text_files(root)
    if not files:
        raise ValueError(f"--data={source} holds no {', '.join(KINDS)} file, nor one of them as .gz or .zst")
    return Listing(root.resolve().name, tuple(Found(file, "folder") for file in files), root=root)


def _list_world() -> Listing:
    """The embedded world: of the mirror where it has one, else made on this machine, where it then is the hub."""
    root, where, folder = hub.mirror(), "mirror", "datasets/local/world"
    if root is None or not (root / folder).is_dir():
        from nanochat.world import write_world

        root, where = hub.world_dir(), "made"
        once_a_node("the embedded world", lambda: write_world(root))
    *train, val = (Found(file, where) for file in text_files(root / folder, (".parquet",)))
    return Listing("world", tuple(train), (val,))


def _list_python() -> Listing:
    """The standard library of the running Python: real text that every machine has."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in text_files(root, (".py",)) if "site-packages" not in file.parts]
    return Listing("python", tuple(Found(file, "python") for file in files), root=root, skip_bad=True)


HERE: dict[str, Callable[[], Listing]] = {"world": _list_world, "python": _list_python}


def _converted(listing: Listing, skip_bad: bool) -> Path:
    files = [found.path for found in listing.train]

    def work() -> str:
        return str(convert(listing.name, listing.root, files, skip_bad or listing.skip_bad))

    return Path(once_a_node(f"the conversion of {listing.root}", work))
