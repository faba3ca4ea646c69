"""An export that is pushed to a local hub: real HTTP, the endpoints that an upload uses."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from base_runs import Base
from local_server import Handler, LocalServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of-a-test"


class UploadHub(LocalServer):
    """repos: name → whether it is private. files: path → content, after a commit. refused: what may not be written."""

    def __init__(self) -> None:
        self.repos: dict[str, bool] = {}
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}  # SHA-256 → large file
        self.calls: list[str] = []
        self.commits: list[str] = []
        self.refused = ""  # pattern of paths that may not be written
        super().__init__(Answers)


class Answers(Handler):
    protocol_version = "HTTP/1.1"
    server: UploadHub

    def do_HEAD(self) -> None:
        self.send(200)

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").split("/revision")[0].split("?")[0]
        if name not in self.server.repos:
            self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return
        private = self.server.repos[name]
        self.send(200, {"id": name, "sha": COMMIT, "private": private, "siblings": [], "tags": []})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.server.calls.append("PUT")
        self.server.blobs[self.path.rpartition("/")[2]] = content
        self.send(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        self.server.calls.append(path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send(401, {"error": "Invalid username or password."})
        elif self.server.refused and re.search(self.server.refused, path):
            self.send(403, {"error": "You do not have the rights"}, {"X-Error-Message": "this token may only read"})
        elif path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about['organization']}/{about['name']}"
            url = {"url": f"{self.server.address}/{name}", "name": name}
            if name in self.server.repos:
                self.send(409, {"error": "You already created this model repo"} | url)
                return
            self.server.repos[name] = about.get("visibility") == "private" or about.get("private") is True
            self.send(200, url)
        elif path == "/api/validate-yaml":  # of the model card
            self.send(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            asked = json.loads(body)["files"]
            large = {True: "lfs", False: "regular"}
            modes = [
                {"path": file["path"], "uploadMode": large[file["path"].endswith("safetensors")], "shouldIgnore": False}
                for file in asked
            ]
            self.send(200, {"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = []
            for one in json.loads(body)["objects"]:
                upload = {"href": f"{self.server.address}/blobs/{one['oid']}"}
                objects.append(one | {"authenticated": True, "actions": {"upload": upload}})
            self.send(200, {"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    self.server.commits.append(value["summary"])
                elif line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.blobs[value["oid"]]
            self.send(
                200,
                {
                    "success": True,
                    "commitOid": COMMIT,
                    "commitUrl": f"{self.server.address}/me/a/commit/{COMMIT}",
                    "hookOutput": "",
                },
            )
        else:
            self.send(404, {"error": path})

    def send(self, status: int, answer: object = None, headers: dict[str, str] | None = None) -> None:
        text = "" if answer is None else json.dumps(answer)
        self.respond(status, {"Content-Length": str(len(text.encode())), **(headers or {})}, text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Base:
    runs = Base(tmp_path_factory.mktemp("runs"))
    runs.run("small", "--depth=1", "--num-iterations=2", "--eval-every=-1", "--save-every=-1")
    return runs


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with UploadHub() as server:
        yield server


@pytest.fixture
def export(runs: Base, hub: UploadHub, python, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run the command as a process, with this hub and a token."""

    def run(*flags: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess:
        environment = {
            "NANOCHAT_BASE_DIR": str(runs.folder),
            "HF_ENDPOINT": hub.address,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",  # the files travel by HTTP
            **variables,
        }
        words = ("-m", "tracks.export.export", "--source=base", "--tag=small", f"--out={tmp_path / 'out'}")
        return python(*words, *flags, code=code, **environment)

    return run


def test_an_export_is_pushed_in_one_commit_and_private(export, hub, tmp_path) -> None:
    done = export("--push=me/my-model")
    out = tmp_path / "out"
    written = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert hub.files == written
    assert {"config.json", "model.safetensors", "README.md"} <= written.keys()
    assert hub.repos == {"me/my-model": True}
    assert hub.commits == ["Export of out"]
    assert "PUT" in hub.calls  # the weights, as a large file
    assert done.stdout.splitlines()[-1] == f"pushed to {hub.address}/me/my-model (private)"


def test_a_public_one_is_asked_for_and_never_by_chance(export, hub, tmp_path) -> None:
    hub.repos["me/seen"] = False
    refused = export("--push=me/seen", code=2)
    assert refused.stderr == "error: --push=me/seen: it is there and public, so the files would be too: add --public\n"
    assert hub.commits == []
    shutil.rmtree(tmp_path / "out")
    assert "(public)" in export("--push=me/seen", "--public").stdout
    assert len(hub.commits) == 1
    shutil.rmtree(tmp_path / "out")
    assert export("--push=me/new", "--public").stdout.endswith(f"pushed to {hub.address}/me/new (public)\n")
    shutil.rmtree(tmp_path / "out")
    hub.repos["me/hidden"] = True
    said = export("--push=me/hidden", "--public").stdout.splitlines()[-1]
    assert said == f"pushed to {hub.address}/me/hidden (private: a repository that exists keeps its visibility)"
    assert hub.repos == {"me/seen": False, "me/new": False, "me/hidden": True}


def test_what_fails_is_said_in_one_sentence_and_the_export_stays(export, hub, tmp_path) -> None:
    hub.refused = "/commit/"
    said = export("--push=me/my-model", code=2).stderr
    assert said.startswith("error: --push=me/my-model: ")
    assert "403 Forbidden" in said
    assert "this token may only read" in said
    assert said.endswith(
        f"the export is in {tmp_path}/out, and `hf upload me/my-model {tmp_path}/out --private` tries again\n"
    )
    assert (tmp_path / "out/model.safetensors").exists()
    assert hub.files == {}
    shutil.rmtree(tmp_path / "out")
    said = export("--push=me/my-model", "--public", code=2).stderr
    assert said.endswith(f"`hf upload me/my-model {tmp_path}/out` tries again\n")


@pytest.mark.parametrize(
    ("flags", "variables", "sentence"),
    [
        (
            ("--push=me/my-model",),
            {"HF_TOKEN": ""},
            "needs a token that may write: put it into HF_TOKEN, or run `hf auth",
        ),
        (("--push=me/my-model",), {"HF_HUB_OFFLINE": "1"}, "--push=me/my-model: the hub is switched off"),
        (
            ("--push=me/my-model",),
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "http://127.0.0.1:9 cannot be reached: connect",
        ),
        (("--push=my-model",), {}, "--push=my-model is not like user/name"),
        (("--push=me/a b",), {}, "--push=me/a b is not like user/name"),
        (("--public",), {}, "--public is for an upload: add --push=user/name"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_the_export(export, hub, tmp_path, flags, variables, sentence) -> None:
    assert sentence in export(*flags, code=2, **variables).stderr
    assert not (tmp_path / "out").exists()
    assert hub.calls == []


SPOILED = """
import runpy, sys
from tracks.export import hf
def refuse(exported, folder):
    raise hf.UserError("the comparison failed")
hf.write_folder = refuse
sys.argv = ["export", *sys.argv[1:]]
runpy.run_module("tracks.export.export", run_name="__main__")
"""


def test_nothing_is_pushed_if_a_comparison_fails(runs, hub, python, tmp_path) -> None:
    words = ("--source=base", "--tag=small", f"--out={tmp_path / 'out'}", "--push=me/my-model")
    variables = {
        "NANOCHAT_BASE_DIR": str(runs.folder),
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
    }
    done = python("-c", SPOILED, *words, code=2, **variables)
    assert done.stderr == "error: the comparison failed\n"
    assert hub.calls == []
    assert not (tmp_path / "out").exists()
