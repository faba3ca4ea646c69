"""scripts.prepare with a mirror and with a world; tests/test_speedrun.py downloads, tests/data/ converts."""

import re

from bundles import HARD, write_bundle


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
