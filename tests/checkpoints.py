"""What the tests of checkpoints save: a small state that follows from the step alone, so any reader can check it."""

from pathlib import Path

import torch

from nanochat.checkpoint import RECORD, Checkpoint, Saver

PARAMETERS = [f"blocks.{i}.attn.{kind}.weight" for i in range(2) for kind in "qkv"] + ["embed.weight"]
PARAMETERS += ["a", "a/b"]  # a name that another begins with


def model_of(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(3, 5, generator=generator) for name in PARAMETERS}


def state_of(step: int, name: str) -> dict[str, torch.Tensor]:
    number = PARAMETERS.index(name)
    return {"step": torch.tensor(step), "momentum": torch.full((3, 5), step + number / 7, dtype=torch.bfloat16)}


def states_of(step: int, rank: int = 0, ranks: int = 1) -> list[tuple[str, dict[str, torch.Tensor]]]:
    return [(name, state_of(step, name)) for name in PARAMETERS[rank::ranks]]


def record_of(step: int) -> dict:
    return dict.fromkeys(RECORD) | {"stage": "base_train", "loop": {"step": step, "loss": 1 / 3, "π": float("inf")}}


def save(saver: Saver, step: int) -> None:
    saver.save(step, model_of(step), states_of(step, saver.rank, saver.world_size), record_of(step))


def saved(folder: Path, *numbers: int, **options) -> Path:
    with Saver(folder, **options) as saver:
        for number in numbers:
            save(saver, number)
    return folder


def check(checkpoint: Checkpoint) -> None:
    step, model = checkpoint.step, checkpoint.model_tensors()
    assert model.keys() == set(PARAMETERS)
    assert all(torch.equal(model[name], tensor) for name, tensor in model_of(step).items())
    for name in PARAMETERS:
        state = checkpoint.optimizer_state(name)
        assert state.keys() == {"step", "momentum"}
        assert all(torch.equal(state[key], tensor) for key, tensor in state_of(step, name).items()), name
    assert checkpoint.manifest["loop"] == record_of(step)["loop"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"lock"}
