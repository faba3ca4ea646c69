"""Text to train on: corpora by name, folders of your own, and mixes of both, as parquet shards with some text held out.

--data is a name of CORPORA or HERE, a folder or `folder:PATH`, `auto`, or a mix by shares of tokens, like
`climbmix:0.7,folder:my-text:0.3`.
"""

import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nanochat.data import hub
from nanochat.data.documents import KINDS, Bad, text_files
from nanochat.data.folder import convert
from nanochat.data.hub import HubFile
from nanochat.data.shards import Shard, open_shards
from nanochat.log import print0
from nanochat.nodes import once_a_node


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
        *("HuggingFaceFW/fineweb-2", 25, 1, "data/kor_Hang/test/000_00000.parquet"),
        lambda i: f"data/kor_Hang/train/{i // 5:03d}_{i % 5:05d}.parquet",
    ),
    # 125 MB of books, documentation, Korean and code, of a mirror only.
    "mixed-text": Named("local/mixed-text", 7, 7, "shard_00007.parquet"),
}
SPLITS = ("train", "val")
BYTES_PER_TOKEN = 5  # of text, at most: only to know how many shards to fetch
AUTO = ("climbmix", "mixed-text")  # the first whose default shards are on this machine, else the embedded world


@dataclass(frozen=True)
class Source:
    """Shards of one kind, in order: to train on, and to validate."""

    name: str
    train: tuple[Shard, ...]
    val: tuple[Shard, ...]


@dataclass(frozen=True)
class Corpus:
    """Sources, each with its share of the tokens; the shares sum to 1. bad: what to do with damaged text."""

    parts: tuple[tuple[Source, float], ...]
    bad: Bad = field(default_factory=lambda: Bad(skip=False), compare=False)

    @property
    def name(self) -> str:
        names = [f"{source.name}:{share:.2g}" for source, share in self.parts]
        return "+".join(names) if len(names) > 1 else self.parts[0][0].name

    @property
    def size(self) -> int:
        """Bytes of text, nearly: a file of many repeats holds, and counts, each once."""
        return sum(shard.size for *_, shard in self._shards())

    def batches(self, split: str) -> Iterator[pa.Array]:
        """Arrow string arrays of the documents of "train" or "val", a row group each.

        Of a mix, always one of the source that is furthest behind its share, by bytes, until all have ended.
        """
        assert split in SPLITS, split

        def row_groups(shards: tuple[Shard, ...]) -> Iterator[pa.Array]:
            for shard in shards:
                for group in range(shard.row_groups):
                    with self.bad.caught():
                        yield shard.read(group)

        streams = [[0.0, share, row_groups(getattr(source, split))] for source, share in self.parts]
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
        shards = self._shards()
        contents = [f"{split} {share:.6f} {shard.hash}" for _, share, split, shard in shards]
        held_out = [shard.hash for *_, split, shard in shards if split == "val"]
        return {
            "name": self.name,
            "files": len(shards),
            "bytes": self.size,
            "documents": sum(shard.rows for *_, shard in shards),
            "fingerprint": hashlib.sha256("\n".join(contents).encode()).hexdigest(),
            "validation": hashlib.sha256("\n".join(held_out).encode()).hexdigest(),
        }

    def manifest(self) -> list[dict]:
        """Every file, for the manifest of a run."""
        return [
            {"source": name, "split": split, "file": shard.path.name, "revision": hub.revision(shard.path)}
            | {"rows": shard.rows, "size": shard.stamp[0], "sha256": shard.hash}
            for name, _, split, shard in self._shards()
        ]

    def _shards(self) -> list[tuple[str, float, str, Shard]]:
        """(name of the source, its share, split, shard) of each."""
        splits = [
            (source.name, share, split, getattr(source, split)) for source, share in self.parts for split in SPLITS
        ]
        return [(*about, shard) for *about, shards in splits for shard in shards]


# ---- from --data to shards ----


@dataclass(frozen=True)
class Listing:
    """The files that a part of --data names: shards, the last to validate, or what is below `root` and no shard yet."""

    name: str
    files: list[Path]
    column: str = "text"
    root: Path | None = None
    skip_bad: bool = False

    def shards(self, skip_bad: bool) -> list[Path]:
        """Those files, or what has been made of them."""
        if self.root is None:
            return self.files
        what, how = f"the conversion of {self.root}", (self.name, self.root, self.files, skip_bad or self.skip_bad)
        return sorted(Path(once_a_node(what, lambda: str(convert(*how)))).glob("*.parquet"))


def open_corpus(data: str, num_shards: int = 0, offline: bool = False, skip_bad: bool = False) -> Corpus:
    """The corpus that --data names, its files fetched or converted where need be, and opened: damage is found here.

    num_shards: of a corpus with a name, to train on; 0 for its default. With skip_bad, what is damaged is left out.
    """
    if data == "auto":
        print0(f"data: {_auto()} is what --data=auto finds")
    bad, parts = Bad(skip_bad, tell=True), []
    for listing, share in find(data, num_shards, offline):
        paths = listing.shards(skip_bad)
        train, val = (open_shards(some, listing.column, bad, hub.sha256) for some in (paths[:-1], paths[-1:]))
        if not train or not val:
            raise ValueError(f"--data: {listing.name} has no whole shard for {'val' if train else 'train'}")
        parts.append((Source(listing.name, train, val), share))
    held_out = {shard.hash: shard for source, _ in parts for shard in source.val}
    for shard in (shard for source, _ in parts for shard in source.train):
        if shard.hash in held_out:
            raise ValueError(f"{shard.path} is to train on and to validate: it is {held_out[shard.hash].path}")
    return Corpus(tuple(parts), bad)


def find(data: str, num_shards: int = 0, offline: bool = False) -> list[tuple[Listing, float]]:
    """The files that --data names, fetched where they are missing, and the share of the tokens of each part."""
    return [(_list(source, num_shards, offline), share) for source, share in _parse(data)]


def hub_files(data: str, num_shards: int = 0) -> list[HubFile]:
    """What --data names on the hub, fetched or not."""
    return [file for source, _ in _parse(data) if source in CORPORA for file in CORPORA[source].files(num_shards)]


def shards_for(data: str, tokens: float) -> int:
    """How many shards of the corpora with a name that --data names hold the text of so many tokens to train on.

    Reckoned from the first shard of each, and no more than there are; 0 where nothing has a name.
    """
    most = 0
    for source, share in _parse(data):
        if named := CORPORA.get(source):
            [first] = hub.fetch(named.files(1)[:1])
            [shard] = open_shards([first.path], named.column, Bad(skip=False), hub.sha256)
            most = max(most, min(named.count, math.ceil(BYTES_PER_TOKEN * tokens * share / shard.size)))
    return most


def check_data(data: str) -> None:
    """ValueError where --data names what is not there; nothing is fetched or made for it."""
    for source, _ in _parse(data):
        if source not in CORPORA and source not in HERE:
            _list(source, 0, offline=True)


def _parse(data: str) -> list[tuple[str, float]]:
    """(source, share of the tokens) of each part of a mix, or of one alone. A folder's name may hold commas, colons."""
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
        parts = [(parts[0][0], 1.0)]
    for source, share in parts:
        if not 0 < share < math.inf:
            raise ValueError(f"--data={data}: {source} needs its share of the tokens, like climbmix:0.7,my-text:0.3")
    if len({source for source, _ in parts}) < len(parts):
        raise ValueError(f"--data={data} names a source twice, add up its shares")
    total = math.fsum(share for _, share in parts)
    return [(_auto() if source == "auto" else source, share / total) for source, share in parts]


def _auto() -> str:
    return next((name for name in AUTO if hub.is_here(CORPORA[name].files())), "world")


def _list(source: str, num_shards: int, offline: bool) -> Listing:
    if source in HERE:
        return HERE[source]()
    if named := CORPORA.get(source):
        return Listing(source, [found.path for found in hub.fetch(named.files(num_shards), offline)], named.column)
    root = Path(source.removeprefix("folder:")).expanduser()
    if not root.is_dir():
        what = "is a file, name its folder" if root.is_file() else "is no folder"
        raise ValueError(f"--data={source} {what}; the corpora with a name are auto, {', '.join([*CORPORA, *HERE])}")
    if files := text_files(root):
        return Listing(root.resolve().name, files, root=root)
    raise ValueError(f"--data={source} holds no {', '.join(KINDS)} file, nor one of them as .gz or .zst")


def _list_world() -> Listing:
    """The embedded world: of the mirror where it has one, else made on this machine, where it then is the hub."""
    root, folder = hub.mirror(), "datasets/local/world"
    if root is None or not (root / folder).is_dir():
        from nanochat.world.writer import write_world

        root = hub.world_dir()
        once_a_node("the embedded world", lambda: write_world(root, seed=1, size="small"))
    return Listing("world", text_files(root / folder, (".parquet",)))


def _list_python() -> Listing:
    """The standard library of the running Python: real text that every machine has."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in text_files(root, (".py",)) if "site-packages" not in file.parts]
    return Listing("python", files, root=root, skip_bad=True)


HERE: dict[str, Callable[[], Listing]] = {"world": _list_world, "python": _list_python}
