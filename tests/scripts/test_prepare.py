"""scripts.prepare with a mirror and with a world; tests/test_speedrun.py downloads, tests/data/ converts."""

import re
from io import BytesIO
from zipfile import ZipFile

import pytest
from bundles import HARD, write_bundle
from huggingface_hub import constants
from local_server import Handler, LocalServer

from nanochat.config import parse
from nanochat.data import bundle
from nanochat.data.hub import HubError
from nanochat.paths import write_text
from scripts import prepare
from tasks import TASKS


def test_the_list_of_core_tasks_names_further_files_and_the_world_is_always_there(python, here, base, tmp_path) -> None:
    write_bundle(tmp_path, HARD)
    done = here("scripts.prepare", "--data=", "--tasks=core", NANOCHAT_HUB=str(tmp_path))
    assert "tasks: 3 files" in done.stdout
    # The embedded world is what a bare machine trains on.
    done = python("-m", "scripts.prepare", "--data=auto")
    assert "data: world is what --data=auto finds" in done.stdout
    again = here("scripts.prepare", "--data=world", NANOCHAT_HUB=str(base))  # a mirror without a world
    records = [re.search(r"^data: world: .*", output.stdout, re.MULTILINE)[0] for output in (done, again)]
    assert records[0] == records[1]


def refuse(request: Handler) -> None:
    request.send_error(403)


def spoil(request: Handler) -> None:
    """Answer with an archive that has another core.yaml."""
    body = BytesIO()
    with ZipFile(body, "w") as archive:
        archive.writestr("eval_bundle/core.yaml", "icl_tasks: []")
    request.send_response(200)
    request.send_header("Content-Length", str(len(body.getvalue())))
    request.end_headers()
    request.wfile.write(body.getvalue())


REFUSALS = [
    # what the server of the bundle does | the reason
    (refuse, "403"),
    (spoil, "core.yaml is not the known file"),
]


@pytest.mark.parametrize(("answer", "reason"), REFUSALS)
def test_a_bundle_that_is_refused_costs_only_what_needs_it(answer, reason, base, monkeypatch, capsys) -> None:
    class Refusing(Handler):
        do_GET = do_HEAD = answer

    monkeypatch.delenv("NANOCHAT_HUB", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with LocalServer(Refusing) as server:
        monkeypatch.setattr(bundle, "URL", f"{server.address}/eval_bundle.zip")
        prepare.main(parse(prepare.Config, ["--data=world", "--optional-tasks=core"]))
        said = capsys.readouterr().out
        assert re.search(rf"^download: core is left out: .*{reason}", said, re.MULTILINE)
        assert "data: world: " in said
        with pytest.raises(HubError, match=reason):
            prepare.main(parse(prepare.Config, ["--data=", "--tasks=core"]))


def test_other_tasks_can_be_optional_too(here, tmp_path) -> None:
    done = here(
        "scripts.prepare", "--data=", "--tasks=world-talk", "--optional-tasks=gsm8k", NANOCHAT_HUB=str(tmp_path)
    )
    assert "download: GSM8K is left out: " in done.stdout
    assert "tasks: " not in done.stdout
    for file in TASKS["GSM8K"].files():
        write_text(tmp_path / str(file), "")
    done = here("scripts.prepare", "--data=", "--tasks=gsm8k", "--optional-tasks=gsm8k", NANOCHAT_HUB=str(tmp_path))
    assert done.stdout == "tasks: 2 files\n"
    done = here("scripts.prepare", "--data=", "--optional-tasks=gsm9k", code=2)
    assert done.stderr.startswith("error: gsm9k is not a task")
