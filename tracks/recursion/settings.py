"""The flags of recursion, and their presets."""

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

from nanochat.config import Count, flag_of, option, options
from nanochat.errors import UserError
from nanochat.settings import OptimizerSettings, PretrainSettings, Rate, given


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
OWN_FIELDS = ("carry", "curriculum", "residual_power")  # flags of recursion that no preset has
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
    curriculum: str = option(
        "", "exits that are trained in each equal part of the run, like 2,3,4 (default: all of them throughout)"
    )
    carry: bool = option(
        False, "an update for each exit, as in the original: states are carried on to the next exit without a gradient"
    )
    residual_power: float = option(
        0.0, "scale each update of a state by the applications of a layer to minus this power (DeepLoop: 0.5)", off=0.0
    )
    supervision_base: Rate = option(None, "weight of each exit, relative to the one before (default: the preset's)")
    improvement_reward: Rate = option(None, "reward for the relative improvement of each exit (default: the preset's)")
    warmup_steps: Count | None = option(  # ty: ignore[incompatible-attribute-override]  # None until `with_preset`
        None,
        "learning-rate warmup steps (capped at 10 % of the run) (default: the preset's)",
    )
    grad_clip = option(None, "clip the gradient norm at this value (0: off; default: 1)")

    @property
    def model_fields(self) -> dict[str, int | float]:
        """The fields of RecursiveConfig that flags set. Call `with_preset` first."""
        return {name: getattr(self, name) for name in ("supervision", "loops", "passes", "detached", "residual_power")}

    @property
    def parts(self) -> tuple[int, ...]:
        """The exits that are trained in each equal part of the run; () without a curriculum."""
        words = [word.strip() for word in self.curriculum.split(",")] if self.curriculum else []
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise UserError(f"--curriculum={self.curriculum} has to be numbers of exits, like 2,3,4")
        return tuple(int(word) for word in words)

    @property
    def sweeps(self) -> float:
        """Times that each layer runs for a token in training, in the mean over the run. Call `with_preset` first."""
        return self.mean_exits * given(self.passes) * (given(self.loops) + 1)

    @property
    def mean_exits(self) -> float:
        """Exits that a step trains, in the mean over the run. Call `with_preset` first.

        By the clock parts have equal seconds: a part with fewer exits has more steps.
        """
        if not self.parts:
            return given(self.supervision)
        if self.target_seconds != -1:
            return len(self.parts) / sum(1 / exits for exits in self.parts)
        return sum(self.parts) / len(self.parts)

    @property
    def share_of_flops(self) -> float:
        """Of the FLOPs of all exits, as the model's config counts them: what a step of the run takes in the mean."""
        exits = given(self.supervision)
        if self.carry:
            return 1 / exits
        return self.mean_exits / exits

    @property
    def steps_together(self) -> int:
        """With --carry a batch comes once for each exit. Call `with_preset` first."""
        return given(self.supervision) if self.carry else 1

    def whole_batches(self, steps: int) -> int:
        """Return how often something is due, with --carry after whole batches; 0 and -1 stay.

        In a batch each update is that of another exit.
        """
        return -(-steps // self.steps_together) * self.steps_together if steps > 0 else steps

    @property
    def model_notes(self) -> list[str]:
        sweeps = f"{self.supervision} exits x {self.passes} passes x ({self.loops} loops + 1)"
        notes = [f"recursion {self.recursion}: each block runs {sweeps} times for a token"]
        if self.carry:
            notes.append("carry: a step trains one exit, and each batch comes once for each; FLOPs are those of a step")
            every: int = getattr(self, "eval_every", 0)  # a setting of the script
            if every > 0:
                notes.append(f"carry: validation after whole batches, every {self.whole_batches(every)} steps")
        if self.parts:
            parts = ", ".join(map(str, self.parts))
            notes.append(f"curriculum: {parts} exits in equal parts of the run; FLOPs are the mean over the run")
        return notes


Settings = TypeVar("Settings", bound=RecursionSettings)


def with_preset(config: Settings) -> Settings:
    """Return the settings with the preset's value for each flag that was not given."""
    preset = PRESETS[config.recursion]
    if config.carry:
        # The exits are trained one after the other, each with a loss of its own, and no gradient goes between them.
        for name in ("supervision_base", "improvement_reward", "curriculum", "detached"):
            if getattr(config, name):
                raise UserError(f"{flag_of(name)} is for exits that are trained together: leave out it or --carry")
    if config.parts and config.supervision is None:
        config = replace(config, supervision=config.parts[-1])
    config = replace(config, **{name: getattr(preset, name) for name in PRESET_FIELDS if getattr(config, name) is None})
    if config.parts and max(config.parts) != given(config.supervision):
        raise UserError(
            f"--curriculum={config.curriculum} trains at most {max(config.parts)} exits, and the model has"
            f" {config.supervision}: give --supervision={max(config.parts)}, or none"
        )
    if 0 < given(config.supervision) <= given(config.detached):
        raise UserError(f"--detached={config.detached} has to be below --supervision={config.supervision}")
    if config.carry:
        require_whole_batches(config.num_iterations, given(config.supervision))
    return config


def validation_every(config: PretrainSettings) -> int:
    """Return after how many steps a run validates: with --carry after whole batches."""
    return config.whole_batches(config.eval_every) if isinstance(config, RecursionSettings) else config.eval_every


def require_whole_batches(steps: int, exits: int) -> None:
    """Raise a UserError for --carry with steps that end in the middle of a batch; -1: no number of steps is given."""
    if steps > 0 and steps % exits:
        raise UserError(
            f"--carry has a step for each of {exits} exits, and {steps} steps would end in the middle of a batch: use"
            f" --num-iterations={-(-steps // exits) * exits}"
        )
