"""Plan of the main job: scale, data, hardware, and the command of each stage.

`choose_setting` looks at the command line and the machine, `make_job` returns the steps for `nanochat.jobs.runner`.
Nothing starts here. `nanochat.jobs.scales` has the flags of each stage.
"""

import functools
import http.client
import os
import re
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nanochat.data import hub
from nanochat.data.corpus import AUTO, CORPORA, check_data, hub_files
from nanochat.data.hub import HubFile
from nanochat.evals.core_tasks import BUNDLE, data_files
from nanochat.hardware import Accelerator, parse_hardware
from nanochat.jobs.runner import Job, Step, read_settings
from nanochat.jobs.scales import SCALES, Scale, choose_scale, evening_depth, scale_flags
from nanochat.outcome import ROOT
from nanochat.paths import base_dir, stage_dir
from nanochat.stages import MODELS, STAGES

SCRIPTS = {stage.name: stage.script for stage in STAGES}
PARENTS = {stage.name: stage.parent for stage in STAGES}
SOURCES = {stage.name: stage.source for stage in STAGES if stage.source}
# Base models are not evaluated on chats.
PLANNED_STAGES = [stage.name for stage in STAGES if stage.source != "base"]
STEPS = ("world", "download", *PLANNED_STAGES, "report")
TRAINING = ("base_train", "mid_train", "chat_sft", "chat_rl")
TEXT_STAGES = ("tok_train", "tok_eval", "base_train", "base_loss")  # stages that read the text
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # a machine with none of them has no GPU
HUB_TIMEOUT = 3.0  # seconds


class Request(Protocol):
    """Fields of the command line of scripts.plan."""

    scale: str
    depth: int
    data: str
    tag: str
    seed: int
    wandb: str
    until: str
    seconds: float
    fresh: bool
    on: str
    cwd: str


@dataclass(frozen=True)
class Setting:
    """Choices that follow from a command line and the machine."""

    name: str  # key of SCALES
    reason: str  # for that scale, in words
    scale: Scale
    depth: int
    gpus: int  # at work: a power of two, because the rows of a batch are one
    idle: int  # other GPUs
    accelerator: Accelerator | None  # kind of the GPUs; None: CPU only
    data: str  # with absolute folders
    own_world: bool  # the job writes an embedded world, and reads text and tasks there
    world: Path
    planned: bool  # for hardware that is not here: nothing is checked or run

    @property
    def hardware(self) -> str:
        """GPUs at work, like 8xH100; empty: none."""
        return f"{self.gpus}x{self.accelerator.name}" if self.gpus else ""

    def has_files(self, files: Sequence[HubFile]) -> bool:
        """Return True if the files are here, will be written with the world, or can be downloaded."""
        # Data sets of a repository named local/ exist in mirrors only.
        on_hub = all(file.repo and not file.repo.startswith("local/") for file in files)
        return self.own_world or hub.is_here(files) or (on_hub and has_network(self.planned))

    @property
    def environment(self) -> dict[str, str]:
        """Variables for all stages."""
        if self.own_world:
            return {"NANOCHAT_HUB": str(self.world)}
        # The world of an earlier job would stand in for real data sets that can be downloaded.
        world_is_here = self.data != "world" and hub.world_dir().exists()
        return {"NANOCHAT_WORLD": "off"} if world_is_here and has_network(self.planned) else {}


def find_hardware(named: str) -> tuple[int, Accelerator | None]:
    """Return count and kind of the GPUs that --on names, or of this machine. torch is imported only if it has some."""
    if named:
        return parse_hardware(named)
    if not any(Path(path).exists() for path in GPU_DEVICES) and not shutil.which("nvidia-smi"):
        return 0, None
    from nanochat.runtime import planned_hardware

    count, accelerator = planned_hardware("")
    return (0, None) if accelerator.name in ("CPU", "MPS") else (count, accelerator)


@functools.lru_cache
def has_network(planned: bool) -> bool:
    """Return True if the hub answers; assumed of hardware that is not here."""
    if planned:
        return True
    from huggingface_hub import constants  # reads HF_ENDPOINT and HF_HUB_OFFLINE when it is imported

    if hub.mirror() or constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=HUB_TIMEOUT).close()
    except urllib.error.HTTPError:  # an answer too
        return True
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def text_here() -> str:
    """Return the first corpus of AUTO that is on this machine; empty: none."""
    return next((name for name in AUTO if hub.is_here(CORPORA[name].files())), "")


def absolute_data(data: str, folder: Path) -> str:
    """Return --data with absolute paths, because stages run in another folder."""

    def absolute(source: str) -> str:
        path = folder / Path(source.removeprefix("folder:")).expanduser()
        return f"folder:{path.resolve()}" if path.is_dir() and source not in CORPORA else source

    if absolute(data) != data:  # one folder, perhaps with commas in its name
        return absolute(data)
    parts = [re.fullmatch(r"(.*?)(:[\d.]+)?", part.strip()).groups("") for part in data.split(",")]
    return ",".join(absolute(source) + share for source, share in parts)


def choose_setting(request: Request) -> Setting:
    """Return the choices for this machine; a ValueError if a flag names something that does not exist."""
    for flag, value, known in (
        ("scale", request.scale, ("auto", *SCALES)),
        ("until", request.until, ("", *STEPS)),
    ):
        if value not in known:
            raise ValueError(f"--{flag}={value} is not known, take one of {', '.join(filter(None, known))}")
    count, accelerator = find_hardware(request.on)
    planned = bool(request.on)
    data = request.data
    if data != "auto":
        data = absolute_data(data, Path(request.cwd or "."))
        check_data(data)

    earlier = {} if request.fresh or planned else read_settings(stage_dir("speedrun", request.tag))
    name, reason = request.scale, "as asked"
    if name == "auto" and earlier:  # a lost GPU or network must not discard a trained model
        name, reason = earlier["scale"], "as this run started"
    elif name == "auto":
        has_text = not count or data != "auto" or bool(text_here()) or has_network(planned)
        name, reason = choose_scale(count, accelerator, has_text)
    scale = SCALES[name]
    if data == "auto":
        network_text = "climbmix" if has_network(planned) else ""
        data = "world" if scale.world else text_here() or network_text
    if not data:
        raise ValueError(f"--scale={name} needs real text, and none is here: name a folder with --data=FOLDER")

    earlier_depth = earlier.get("depth", 0) if earlier.get("scale") == name else 0
    # Batches of a world are small: one GPU is faster than several. The other runs take the largest power of two.
    gpus = min(count, 1) if scale.world else 1 << count.bit_length() >> 1
    mirror, world = hub.mirror(), hub.world_dir()
    mirror_has_world = mirror and (mirror / "datasets/local/world").is_dir()
    return Setting(
        name=name,
        reason=reason,
        scale=scale,
        depth=request.depth or scale.depth or earlier_depth or evening_depth(accelerator),
        gpus=gpus,
        idle=count - gpus,
        accelerator=accelerator,
        data=data,
        own_world=data == "world" and not mirror_has_world,
        world=world if request.seed == 1 else world.with_name(f"{world.name}-{request.seed}"),
        planned=planned,
    )


def stage_flags(setting: Setting, request: Request) -> dict[str, dict[str, str]]:
    """Return the flags of each stage: those of the scale, the machine and the command line."""
    flags = {}
    for name in PLANNED_STAGES:
        own = scale_flags(setting.scale, SCRIPTS[name], request.seconds)
        own["--tag"] = request.tag
        if name in TRAINING:
            own["--seed"] = str(request.seed)
        if name in SOURCES:
            own["--source"] = SOURCES[name]
        if name in TEXT_STAGES and name != "base_loss":  # base_loss reads the text of the model's own run
            own["--data"] = setting.data
        if setting.data != "world":
            own.pop("--mixture", None)  # names tasks of the world; the scripts have a default for real data sets
        flags[name] = own
    base = flags["base_train"]
    base["--depth"] = str(setting.depth)
    base["--tokenizer-tag"] = request.tag
    if not setting.has_files(BUNDLE):
        base.pop("--core-metric-every", None)
    if setting.accelerator and not setting.accelerator.fp8:
        base.pop("--fp8", None)
    return flags


def flag_words(flags: Mapping[str, str]) -> list[str]:
    return [f"{flag}={value}" if value else flag for flag, value in flags.items()]


def make_job(
    setting: Setting,
    request: Request,
    flags: Mapping[str, Mapping[str, str]],
    tokens: int,
    tasks: Mapping[str, Sequence[HubFile]],
    needs: Mapping[str, str],
) -> Job:
    """Return the steps of the main job.

    tokens: of base training, so that enough text is downloaded; 0: the corpus's default. tasks: task -> the files that
    stages read. needs: stage -> the task without which it is left out.
    """
    skips = skip_reasons(setting, tasks, needs, request.until)
    task_files = list(dict.fromkeys(file for files in tasks.values() for file in files))
    commands = {
        "world": ["nanochat.world", f"--out={setting.world}", f"--seed={request.seed}"],
        "download": ["scripts.prepare", f"--data={setting.data}", f"--tokens={tokens}"],
        "report": ["nanochat.report", "--out=report.md", f"--tag={request.tag}"],
    }
    steps = []
    for name in STEPS:
        if name in commands:
            # The download runs beside the tokenizer, so its lines go to its log alone.
            step = Step(name, commands[name], skip=skips[name], quiet=name == "download")
        else:
            step = _stage_step(name, setting, request, flags[name], task_files, skips[name])
        steps.append(step)
    return Job(
        "speedrun",
        request.tag,
        steps,
        environment=setting.environment,
        resume=resume_command(request, setting.data),
        closing=skipped_lines(steps) + talk_lines(steps, request.tag),
        settings={"scale": setting.name, "depth": setting.depth},
    )


def _stage_step(
    name: str,
    setting: Setting,
    request: Request,
    flags: Mapping[str, str],
    task_files: Sequence[HubFile],
    skip: str,
) -> Step:
    """Return the step of a stage: its command, and all files that decide its result."""
    reads_text = name in TEXT_STAGES
    files = [] if reads_text else _bundle_files() if name == "base_eval" else task_files
    parent = PARENTS[name]
    # Tokenizers are trained and evaluated on the CPU.
    several_gpus = setting.gpus > 1 and not name.startswith("tok")
    return Step(
        name,
        [f"scripts.{SCRIPTS[name]}", *flag_words(flags)],
        output=f"{name}/{request.tag}",
        parents=[f"{parent}/{request.tag}"] if parent else [],
        data=setting.data if reads_text else "",
        files=[[file.path, file.repo, file.revision] for file in files],
        launch=[*TORCHRUN, f"--nproc_per_node={setting.gpus}"] if several_gpus else [],
        options=[f"--run={request.wandb}"] if request.wandb else [],
        skip=skip,
    )


def skip_reasons(
    setting: Setting, tasks: Mapping[str, Sequence[HubFile]], needs: Mapping[str, str], until: str
) -> dict[str, str]:
    """Return step -> why it is left out; empty: it is not."""
    reasons = dict.fromkeys(STEPS, "")
    if not setting.own_world:
        text = "the world of NANOCHAT_HUB" if setting.data == "world" else setting.data
        reasons["world"] = f"the text is {text}"
    if not hub_files(setting.data):
        reasons["download"] = "nothing has to be downloaded"
    if not setting.has_files(BUNDLE):
        reasons["base_eval"] = "no eval_bundle is here or on the hub: NANOCHAT_HUB may name a mirror that has one"
    for name, task in needs.items():
        if not setting.has_files(tasks[task]):
            reasons[name] = f"the files of {task} are not here and cannot be downloaded"
    for name in STEPS:  # in order, so that a reason reaches the stages after it
        parent = PARENTS.get(name)
        if until and STEPS.index(name) > STEPS.index(until):
            reasons[name] = f"after --until={until}"
        elif parent and reasons[parent] and not reasons[name]:
            reasons[name] = f"{parent} is left out"
    return reasons


def _bundle_files() -> list[HubFile]:
    """Return the files of the CORE bundle; only its index while that is not on this machine."""
    if not hub.is_here(BUNDLE):
        return list(BUNDLE)
    [index] = hub.fetch(BUNDLE[:1], offline=True)
    return [*BUNDLE, *data_files(index.path)]


def resume_command(request: Request, data: str) -> str:
    """Return the command that resumes this job from any folder; without --fresh, which would start again."""
    words = ["bash", str(ROOT / "speedrun.sh")]
    for name in ("scale", "depth", "tag", "seed", "data", "wandb", "until", "seconds"):
        value = getattr(request, name)
        if value == getattr(type(request), name):  # the default
            continue
        if name == "data":
            value = data  # absolute
        words.append(f"--{name}={value:g}" if name == "seconds" else f"--{name}={value}")
    return shlex.join(words)


def skipped_lines(steps: Sequence[Step]) -> list[str]:
    """Return a line for each reason to leave steps out."""
    reasons: dict[str, list[str]] = {}
    for step in steps:
        reasons.setdefault(step.skip, []).append(step.name)
    return [f"left out: {', '.join(names)} ({reason})" for reason, names in reasons.items() if reason]


def talk_lines(steps: Sequence[Step], tag: str) -> list[str]:
    """Return the commands, for any folder, to chat with the last model of a job; nothing if it trains none."""
    trained = {step.name for step in steps if not step.skip}
    sources = [source for source, stage in MODELS.items() if stage in trained]
    if not sources:
        return []
    place = f"cd {shlex.quote(str(ROOT))} &&"
    if "NANOCHAT_BASE_DIR" in os.environ:
        place += f" NANOCHAT_BASE_DIR={shlex.quote(str(base_dir().resolve()))}"
    model = f"-i {sources[-1]} -g {tag}"
    return [
        f"talk to it: {place} .venv/bin/python -m scripts.chat_cli {model}",
        f"in a browser: {place} .venv/bin/python -m scripts.chat_web {model}",
    ]
