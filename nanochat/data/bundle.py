"""The public CORE bundle: one archive at a URL, unpacked into the base folder when it is first needed."""

import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from nanochat.data.hub import HubFile, fetch, is_here, refusal
from nanochat.errors import UserError
from nanochat.paths import base_dir, publish_folder, read_sha256

NAME = "eval_bundle"  # folder in the archive, in the base folder and in a mirror
URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
# Files that the archive must have, as sha256sum prints them; we have no whole copy of hellaswag, squad and coqa.
FILES = """\
463f6ae0aa127fbd41fa655f8919e136858f4849eef176922a3be96e102ce7e7  core.yaml
2771f63f8127c0725b1f6b0ef2cd2ef6469168ae5875fc8d276b25b4f32c8c1a  commonsense_qa.jsonl
595dca44dec54c849490bd403a3e24a29e3b944065783222ebb0eb1a55298846  copa.jsonl
adb2e5c7f8db810ddad4d6b2bf53dcc86dcc545499f7aafcaf42a8e179476c09  openbook_qa.jsonl
d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0  piqa.jsonl
80c98d8e7ab8213513d1643886229c05c40a6837353b07c19ac7bd860668954e  bigbench_language_identification.jsonl
411bfbe5b9054346b6a19299c0242670adbefb9162efd958593cbc0290b8c9dc  lambada_openai.jsonl
746336c27cd2e39a554cb1b8b4869d0f1ae2577ac5bfe799842d26bca5a5bf5e  winograd_wsc.jsonl
ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7  winogrande.jsonl
454ff101e614370bb1807fe7ebbda6fdb57e794b9662cc1ccae211bf1ff626c8  boolq.jsonl
9ffd73480b51746c11627e56239f8b87035eb255cb92c3a58fd64e2e4b65fb56  agi_eval_lsat_ar.jsonl
8485683a8c7e7e6c9fc6ca3cc81140fd85edb27f34406a6736d1539cf7ebcb3a  bigbench_cs_algorithms.jsonl
106ba9ac7507c7ab385c5e59c49cd57aa83025abf080d9b2a2661c0d6c6dbcc5  bigbench_dyck_languages.jsonl
41e2964ad619c49edd97c22b2c50f922a0241255d906a754bf81a20f4f66b85f  bigbench_operators.jsonl
8febd2c0080a15680cd17f92bfa30d87abcfac021e646e55d0b8ad69f0cfa767  bigbench_repeat_copy_logic.jsonl
1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636  arc_challenge.jsonl
d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5  arc_easy.jsonl
bb0d22727cb25beffb022c8e8c0c3e1159c8b3c7bd7284603c0d6491f8616265  bigbench_qa_wikidata.jsonl
187e7f270a440c63d6cf11a57459fdc7e0bce889338225e42cc88e24ee13d52e  jeopardy_all.jsonl
84e279cdc0d836c9ea3a6e55a99102f8ee18f72809fe7aa6ac5a1fe630aa492f  eval_meta_data.csv
"""


def fetch_bundle(names: Sequence[str]) -> list[Path]:
    """Return files of the bundle in order; the archive is downloaded if one is missing. HubError if that fails."""
    files = [HubFile(f"{NAME}/{name}") for name in names]
    home = base_dir() / NAME
    reason = f"{URL} has no such file"
    # Ranks that ask at the same time wait for one download.
    with FileLock(home.with_suffix(".lock")):
        if not (is_here(files) or home.exists()):
            reason = refusal(URL) or _download(home)
    return fetch(files, refused=reason)


def _download(home: Path) -> str:
    """Download, check and unpack the archive; return the reason if that fails."""
    # With retries and a progress bar, as for files of the hub.
    from huggingface_hub.file_download import http_get

    archive = home.with_suffix(".zip")
    try:
        # An archive ends with its list of members: without one, an earlier download was stopped, and is resumed.
        if not zipfile.is_zipfile(archive):
            with open(archive, "ab") as file:
                http_get(URL, file, resume_size=file.tell())
        try:
            with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{NAME}.tmp-") as part:
                shutil.unpack_archive(archive, part)  # leaves out names with ".."
                _check(Path(part, NAME))
                publish_folder(Path(part, NAME), home)
        finally:
            archive.unlink()  # after an error too: the next attempt needs another archive
    # From httpx, the system or the check: there is no common base class.
    except Exception as error:
        return f"{URL}: " + str(error).partition("\n")[0]
    return ""


def _check(folder: Path) -> None:
    """Raise a UserError if a file is not the known one."""
    for line in FILES.splitlines():
        known, name = line.split()
        if not any(read_sha256(path) == known for path in folder.rglob(name)):
            raise UserError(f"{name} is not the known file, set NANOCHAT_HUB to a mirror with a right {NAME}")
