"""The model of the main job on an embedded world, after reinforcement learning: as others load it, and home again."""

import pytest
from conftest import plant_world
from test_end_to_end import REAL
from tune_runs import SCRIPTS_PARENT, FromParent

from nanochat.checkpoint import load
from nanochat.jobs.scales import SCALES

RL = ["--device-batch-size=2", "--num-iterations=1", "--examples-per-step=2", "--num-samples=2", "--max-new-tokens=8"]
RL += ["--temperature=1", "--eval-every=-1", "--save-every=-1", "--task=World-Sums"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_world):
    flags = SCALES["embedded"].flags["base_train"]
    model = [f"{name}={flags[name]}" for name in ("--model", "--window-pattern")]
    runs = FromParent(tmp_path_factory.mktemp("runs"), "chat_rl", RL, [*SCRIPTS_PARENT, *model, "--depth=2"])
    plant_world(runs.folder, tiny_world)
    runs.run("default")
    return runs


def test_it_is_exported_and_comes_home(runs, here, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(runs.folder))
    here("tracks.export.export", "--source=rl", "--tag=default", f"--out={tmp_path / 'out'}")
    here("tracks.export.import_hf", f"--folder={tmp_path / 'out'}", "--tag=home")
    old, new = (load(runs.of(tag), 1).model_tensors() for tag in ("default", "home"))
    assert old.keys() == new.keys()
    assert all(old[name].equal(new[name]) for name in old)
    # Nothing names a real data set.
    written = [path for folder in (tmp_path / "out", runs.of("home")) for path in folder.rglob("*.json")]
    texts = [path.read_text(encoding="utf-8") for path in (*written, tmp_path / "out/README.md")]
    assert len(texts) > 5
    assert not [text for text in texts if REAL.search(text)]
    refused = here("tracks.export.import_nanochat", "--tag=a", "--checkpoint=b", code=2)
    assert refused.stderr.startswith("error: --checkpoint=b is not named like model_021400.pt")
