"""The flags of recursion, and their presets."""

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

from nanochat.config import Count, option, options
from nanochat.errors import UserError
from nanochat.settings import OptimizerSettings, Rate, given


@dataclass(frozen=True)
class Preset:
    """Settings for training with recursion. A flag with the name of a field wins."""

    supervision_base: float
    improvement_reward: float
    warmup_steps: int
    grad_clip: float = 1.0
    supervision: int = 4
    loops: int = 2
    passes: int = 1
    detached: int = 0


PRESET_FIELDS = tuple(field.name for field in fields(Preset))
PresetName = Literal["moderate", "aggressive", "extreme"]  # the keys
PRESETS = {"moderate": Preset(3.0, 0.5, 100), "aggressive": Preset(5.0, 1.0, 150), "extreme": Preset(10.0, 2.0, 200)}


@options("recursion")
class RecursionSettings(OptimizerSettings):
    """Deep-supervised recursion, see tracks/recursion/model.py. None: the preset's value (`with_preset`)."""

    recursion: PresetName = option("aggressive", "preset of recursion")
    supervision: Count | None = option(None, "exits, each with a loss (default: 4)", least=1)
    loops: Count | None = option(None, "latent-state updates per answer update (default: 2)")
    passes: Count | None = option(
        None, "sweeps over the layers for each exit, the last with a gradient (default: 1)", least=1
    )
    detached: Count | None = option(None, "cut the gradient after this many exits (default: 0)")
    supervision_base: Rate = option(None, "weight of each exit, relative to the one before (default: the preset's)")
    improvement_reward: Rate = option(None, "reward for the relative improvement of each exit (default: the preset's)")
    warmup_steps: Count | None = option(  # ty: ignore[incompatible-attribute-override]  # None until `with_preset`
        None,
        "learning-rate warmup steps (capped at 10 % of the run) (default: the preset's)",
    )
    grad_clip = option(None, "clip the gradient norm at this value (0: off; default: 1)")

    @property
    def model_fields(self) -> dict[str, int]:
        """The fields of RecursiveConfig that flags set. Call `with_preset` first."""
        return {name: getattr(self, name) for name in ("supervision", "loops", "passes", "detached")}

    @property
    def model_notes(self) -> list[str]:
        sweeps = f"{self.supervision} exits x {self.passes} passes x ({self.loops} loops + 1)"
        return [f"recursion {self.recursion}: each block runs {sweeps} times for a token"]


Settings = TypeVar("Settings", bound=RecursionSettings)


def with_preset(config: Settings) -> Settings:
    """Return the settings with the preset's value for each flag that was not given."""
    preset = PRESETS[config.recursion]
    config = replace(config, **{name: getattr(preset, name) for name in PRESET_FIELDS if getattr(config, name) is None})
    if 0 < given(config.supervision) <= given(config.detached):
        raise UserError(f"--detached={config.detached} has to be below --supervision={config.supervision}")
    return config
