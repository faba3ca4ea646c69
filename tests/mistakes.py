"""Command lines with a mistake: the files that they name, and what stands for flags that many of them need."""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CHAT = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'
FILES = {
    "good.jsonl": CHAT,
    "none.jsonl": "",
    "bad.jsonl": f'{CHAT}\n{{"text": "x"}}',
    "broken.jsonl": "{",
    "empty.jsonl": '{"messages": []}',
    "maker.toml": "maker = 'me'",
    "list.toml": "name = ['a']",
    "broken.toml": "name = ",
}
STAND_FOR = {
    "TEACHER": "--teacher=http://host/v1 --teacher-model=wise",
    "SMALL": "--depth=1 --max-seq-len=32 --total-batch-size=256 --num-iterations=5",
}


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "column").mkdir()
    pq.write_table(pa.table({"text": ["x"]}), folder / "column/a.parquet")


def words_of(command: str) -> list[str]:
    """The module and the flags of a line like `scripts.plan --depth=900`."""
    for word, flags in STAND_FOR.items():
        command = command.replace(word, flags)
    return shlex.split(command)
