"""Text corpora: data sets by name, folders of text, and mixes, as parquet shards with some text held out.

`--data` is one of
  climbmix, fineweb-edu, …    a data set on the hub, see CORPORA; shards are downloaded
  world, world-2, …           the embedded world of seed 1, of seed 2, …, written by this repository
  my-text, folder:my-text     a folder with text files, converted to shards once
  auto                        the first data set in AUTO already on this machine, else world
  climbmix:0.7,my-text:0.3    a mix by token shares
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat import world
from nanochat.data import hub
from nanochat.data.documents import TEXT, convert_folder, open_parquet, read_row_group, text_files
from nanochat.data.hub import HubFile
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.paths import base_dir, read_json, stage_dir, text_sha256, tokenizer_file, world_dir

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class HubCorpus:
    """A data set on the hub: `count` training shards, `default` used unless asked for more, and a validation shard.

    path: a shard's path, from its number and from the number divided by 5.
    """

    repo: str
    count: int
    default: int
    validation: str
    path: str = "shard_{number:05d}.parquet"

    def files(self, num_shards: int = 0) -> list[HubFile]:
        """Return the files for a run, the validation shard last; num_shards: 0 for the default."""
        if not 0 <= num_shards <= self.count:
            raise UserError(f"--num-shards={num_shards} is out of range, {self.repo} has {self.count:,}")
        numbers = range(num_shards or self.default)
        paths = [self.path.format(number=number, part=number // 5) for number in numbers]
        return [HubFile(path, self.repo) for path in [*paths, self.validation]]


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
    # Korean web pages; a shard has about 4 GB. Upstream splits each of five files into five parts.
    "fineweb2-ko": HubCorpus(
        repo="HuggingFaceFW/fineweb-2",
        count=25,
        default=1,
        validation="data/kor_Hang/test/000_00000.parquet",
        path="data/kor_Hang/train/{part:03d}_{number:05d}.parquet",
    ),
    # 125 MB: books, documentation, Korean and code; only in a mirror.
    "mixed-text": HubCorpus(
        repo="local/mixed-text",
        count=7,
        default=7,
        validation="shard_00007.parquet",
    ),
}
WORLD = re.compile(r"world(?:-(\d+))?")  # name of an embedded world, with its seed if that is not 1
AUTO = ("climbmix", "mixed-text")
BYTES_PER_TOKEN = 5  # upper estimate, to choose the number of shards
Shards = int | Mapping[str, int]  # training shards: of each data set on the hub, or by its name; 0 for the default


# ---- a corpus ----


@dataclass(frozen=True)
class Shard:
    """A parquet file with documents, as found when opened.

    hash: SHA-256 of the file. size: text bytes before compression; a dictionary holds repeated texts once.
    """

    path: Path
    row_groups: int
    rows: int
    hash: str
    size: int

    def read_row_group(self, group: int) -> "pa.Array":
        """Return the documents in one row group; UserError for text that no tokenizer takes."""
        import pyarrow as pa

        with open_parquet(self.path) as parquet:
            texts = read_row_group(parquet, group)
        try:
            texts.validate(full=True)  # Arrow does not look whether strings are UTF-8 when it reads them
        except pa.ArrowInvalid as error:
            raise UserError(f"{self.path}: row group {group}: {error}") from None
        if texts.null_count:
            raise UserError(f"{self.path}: row group {group}: a document is null, drop such rows")
        return texts


def open_shards(paths: Sequence[Path]) -> tuple[Shard, ...]:
    """Open shards and hash their content; UserError if one is damaged."""
    with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
        return tuple(pool.map(_open_shard, paths))


def _open_shard(path: Path) -> Shard:
    with open_parquet(path) as parquet:
        metadata = parquet.metadata
    column = metadata.schema.names.index(TEXT)  # other columns are not read, and do not count
    groups = range(metadata.num_row_groups)
    return Shard(
        path=path,
        row_groups=metadata.num_row_groups,
        rows=metadata.num_rows,
        hash=hub.sha256(path),
        size=sum(metadata.row_group(group).column(column).total_uncompressed_size for group in groups),
    )


@dataclass(frozen=True)
class Source:
    """One part of a corpus: a share of the tokens, and ordered shards for training and validation."""

    name: str
    share: float
    shards: dict[str, tuple[Shard, ...]]  # "train" and "val"
    seed: int | None = None  # of an embedded world


@dataclass(frozen=True)
class Corpus:
    """Text sources with shares that sum to 1."""

    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        if len(self.sources) == 1:
            return self.sources[0].name
        return "+".join(f"{source.name}:{source.share:.2g}" for source in self.sources)

    def batches(self, split: str) -> "Iterator[pa.Array]":
        """Yield the documents in "train" or "val" as Arrow string arrays, one for each row group.

        In a mix the source furthest behind its share comes next, by bytes, until all have ended.
        """
        streams = []
        for source in self.sources:
            shards = (map(shard.read_row_group, range(shard.row_groups)) for shard in source.shards[split])
            streams.append(chain.from_iterable(shards))
        progress = dict.fromkeys(range(len(streams)), 0.0)  # bytes so far, divided by the share
        while progress:
            behind = min(progress, key=progress.__getitem__)
            batch = next(streams[behind], None)
            if batch is None:
                del progress[behind]
            else:
                progress[behind] += batch.nbytes / self.sources[behind].share
                yield batch

    def describe(self) -> Record:
        """Return name, counts and content hashes for records, without any path on this machine.

        The world's seed is None for text that is not an embedded world, though it may have the name of one, and for a
        mix.
        """
        shards = list(self._shards())
        contents = [f"{split} {source.share:.6f} {shard.hash}" for source, split, shard in shards]
        # Validation alone too: losses on the same validation text can be compared.
        held_out = [shard.hash for _, split, shard in shards if split == "val"]
        return {
            "world seed": self.sources[0].seed if len(self.sources) == 1 else None,
            "name": self.name,
            "files": len(shards),
            # Approximately: a shard counts repeated texts once.
            "bytes": sum(shard.size for _, _, shard in shards),
            "documents": sum(shard.rows for _, _, shard in shards),
            "fingerprint": text_sha256("\n".join(contents)),
            "validation": text_sha256("\n".join(held_out)),
        }

    def manifest(self) -> list[dict[str, Any]]:
        """Return an entry for every shard, for the manifest of a run."""
        return [
            {
                "source": source.name,
                "split": split,
                "file": shard.path.name,
                "rows": shard.rows,
                "sha256": shard.hash,
            }
            for source, split, shard in self._shards()
        ]

    def _shards(self) -> Iterator[tuple[Source, str, Shard]]:
        """Yield every shard with source and split, in order."""
        for source in self.sources:
            for split, own in source.shards.items():
                yield from ((source, split, shard) for shard in own)


def open_corpus(data: str, num_shards: Shards = 0) -> Corpus:
    """Return the corpus for `--data`; downloads or converts missing files, and opens all shards."""
    parts = parse_data(data)
    if data == "auto":
        print0(f"data: {parts[0][0]} is what --data=auto finds")
    sources = []
    for source, share in parts:
        count = num_shards if isinstance(num_shards, int) else num_shards.get(source, 0)
        shards = open_shards(shard_files(source, count))
        # The last shard is always for validation.
        splits = {"train": shards[:-1], "val": shards[-1:]}
        sources.append(Source(source_name(source), share, splits, world_seed(source)))
    return Corpus(tuple(sources))


# ---- from --data to files ----


def parse_data(data: str) -> list[tuple[str, float]]:
    """Return (source, token share) for each part of `--data`; the shares sum to 1."""
    # A folder name may hold commas and colons.
    if data and _folder(data).is_dir():
        return [(data, 1.0)]
    parts = []
    for word in data.split(","):
        # Without a number after the last colon, the colon belongs to the name, and the share is 1.
        match = re.fullmatch(r"(.+?)(?::(\d*\.?\d+))?", word.strip())
        if not match or float(match[2] or 1) == 0:
            raise UserError(f"--data={data} names no text: write it like climbmix:0.7,my-text:0.3, shares above 0")
        source, share = match.groups("1")
        if source == "auto":
            # Never a download: data that a person did not ask for may be large.
            source = text_here() or "world"
        parts.append((source, float(share)))
    total = math.fsum(share for _, share in parts)
    return [(source, share / total) for source, share in parts]


def text_here() -> str:
    """Return the first data set in AUTO that is on this machine; empty if none is."""
    return next((name for name in AUTO if hub.is_here(CORPORA[name].files())), "")


def source_files(source: str, num_shards: int = 0, refused: str = "") -> list[Path]:
    """Return the files of a source before conversion; missing files are downloaded, or written (world).

    refused: see `hub.fetch`.
    """
    if source in CORPORA:
        return hub.fetch(CORPORA[source].files(num_shards), refused)
    seed = world_seed(source)
    if seed is not None:
        return text_files(world_folder(seed) / "text", (".parquet",))
    files = text_files(_folder(source))  # none if there is no such folder
    if not files:
        if _folder(source).resolve() == base_dir().resolve():
            raise UserError(
                f"--data={source} is the base folder, where this program writes: put the text into a folder of its own"
            )
        names = ", ".join((*CORPORA, "world"))
        raise hub.HubError(
            f"--data={source} is not a folder with .parquet, .jsonl, .txt or .md files; corpora with a name are {names}"
        )
    return files


def shard_files(source: str, num_shards: int = 0) -> list[Path]:
    """Return the parquet shards of a source, the validation shard last; a folder is converted once."""
    files = source_files(source, num_shards)
    if is_named(source):
        return files
    return sorted(convert_folder(source_name(source), _folder(source), files).glob("*.parquet"))


def shards_for(data: str, tokens: float) -> Shards:
    """Return how many shards have text for `tokens` training tokens; 0 if `--data` names no data set on the hub.

    A mix of several data sets has a number for each, by its share. The first shard in each data set gives the shard
    size, and is downloaded if missing.
    """
    counts: dict[str, int] = {}
    for source, share in parse_data(data):
        if source in CORPORA and tokens:
            named = CORPORA[source]
            # All shards of a data set have about the same size.
            [shard] = open_shards(hub.fetch(named.files(1)[:1]))
            wanted = math.ceil(BYTES_PER_TOKEN * tokens * share / shard.size)
            counts[source] = max(counts.get(source, 0), min(named.count, wanted))
    return counts if len(counts) > 1 else max(counts.values(), default=0)


def default_shards(data: str) -> list[str]:
    """Return in words how much is read of each data set on the hub that `--data` names, if nobody says how much."""
    named = {source: CORPORA[source] for source, _ in parse_data(data) if source in CORPORA}
    return [f"{corpus.default} of {corpus.count:,} shards of {source}" for source, corpus in named.items()]


def absolute_data(data: str) -> str:
    """Return `--data` with absolute folders; UserError for a missing one. Nothing is downloaded or converted."""
    parts = []
    for source, share in parse_data(data):
        if not is_named(source):
            source_files(source)
            source = f"folder:{_folder(source).resolve()}"
        parts.append(f"{source}:{share:g}" if share < 1 else source)
    return ",".join(parts)


def source_name(source: str) -> str:
    """Return the short name of a source: for a folder, the last part of the path."""
    return source if is_named(source) else _folder(source).resolve().name


def _folder(source: str) -> Path:
    """Return the folder that a source names."""
    return Path(source.removeprefix("folder:")).expanduser()


def is_named(source: str) -> bool:
    """Return True for a data set on the hub and for an embedded world; every other source is a folder."""
    return source in CORPORA or world_seed(source) is not None


# ---- embedded worlds ----


def world_seed(source: str) -> int | None:
    """Return the seed of an embedded world; None for any other source."""
    match = WORLD.fullmatch(source)
    return int(match[1] or 1) if match else None


def world_folder(seed: int) -> Path:
    """Return the folder of the embedded world of this seed; one that is missing or of an older version is written."""
    folder = world_dir(seed)
    record = folder / "world.json"
    if not record.is_file() or read_json(record)["version"] != world.VERSION:
        from nanochat.world.writer import ensure_world  # a dozen modules that other corpora do not need

        ensure_world(folder, seed)
        print0(f"embedded world: {folder}", file=sys.stderr)  # stdout may be a table or JSON
    return folder


def suggestions(corpus: Corpus) -> dict[str, list[str]]:
    """Return what to say to a model of this text, for its manifest; nothing unless the text is an embedded world."""
    seed = corpus.sources[0].seed
    if seed is None or len(corpus.sources) > 1:  # a model of a mix chats about the rest too
        return {}
    from nanochat.world.facts import World
    from nanochat.world.suggestions import suggestions as of_world
    from nanochat.world.writer import SIZES

    size = read_json(world_folder(seed) / "world.json")["size"]
    return of_world(World(seed, SIZES[size].people))


def learned_text(tokenizer: str) -> str:
    """Return --data of the tokenizer of this tag, or "auto" if there is none."""
    record = stage_dir("tok_train", tokenizer) / "outcome.json"
    if record.is_file():
        return read_json(record)["config"]["data"]
    return "auto"


def learned_world(tokenizer: str) -> int | None:
    """Return the seed of the embedded world that the tokenizer of this tag learned from; None for other text."""
    path = tokenizer_file(tokenizer)
    if not path.is_file():
        return None
    return read_json(path).get("training", {}).get("data", {}).get("world seed")
