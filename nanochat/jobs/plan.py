"""Plan for the main job: scale, data, hardware, and the command for each stage.

`choose_setting` reads the command line and checks the machine, `make_job` returns the steps for `nanochat.jobs.runner`.
Nothing starts here. `nanochat.jobs.scales` has the flags for each stage.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options
from nanochat.data import hub
from nanochat.data.bundle import URL as BUNDLE_URL
from nanochat.data.corpus import CORPORA, absolute_data, is_named, parse_data, text_here, world_seed
from nanochat.data.hub import HubFile
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.evals.core_tasks import BUNDLE
from nanochat.hardware import Accelerator
from nanochat.jobs.runner import TORCHRUN, Job, Step, saved_record
from nanochat.jobs.scales import (
    CPU_SCALES,
    OWN_TEXT_TEMPERATURE,
    SCALES,
    Flags,
    Scale,
    ScaleName,
    choose_scale,
    evening_depth,
    flag_words,
    scale_flags,
)
from nanochat.paths import base_dir, stage_dir, world_dir
from nanochat.registry import PREFLIGHT, module_of
from nanochat.settings import TagSettings, TextSettings
from nanochat.stages import MODELS, STAGES

TaskFiles = Mapping[str, Sequence[HubFile]]  # by task

PLANNED_STAGES = {stage.name: stage for stage in STAGES if stage.planned}
StepName = Literal[
    "download",
    "tok_train",
    "tok_eval",
    "base_train",
    "base_loss",
    "base_eval",
    "download_tasks",
    "mid_train",
    "chat_eval_mid",
    "chat_sft",
    "chat_eval_sft",
    "chat_rl",
    "chat_eval_rl",
    "report",
]
BASE_STAGES = ("tok_train", "tok_eval", "base_train", "base_loss", "base_eval")
# In the order in which they end in speedrun.sh; downloads run beside other steps.
STEPS = (
    "download",
    *BASE_STAGES,
    "download_tasks",
    *(name for name in PLANNED_STAGES if name not in BASE_STAGES),
    "report",
)
TRAINING = [name for name in PLANNED_STAGES if name in MODELS.values()]  # with a model, a seed and checkpoints
TEXT_STAGES = ("tok_train", "tok_eval", "base_train", "base_loss")  # stages that read the text
# Reasons to leave out a step.
NOTHING = "nothing has to be downloaded"
NO_BUNDLE = "no eval_bundle is here or can be downloaded: NANOCHAT_HUB may name a mirror"
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # a machine with none of them has no GPU


@options("run")
class PlanSettings(TextSettings, TagSettings):
    """What a plan of the main job is made from."""

    tag = "default"

    scale: Literal["auto", ScaleName] = option("auto", "size of the run: docs/speedrun.md")
    depth: Count = option(0, "layers of the model (0: the scale's)", least=1)
    seed: Count = option(1, "seed of the embedded world, the weights and the data order")
    wandb: str = option("", "name of the run in W&B (default: no W&B)")
    trackio: str = option("", "name of the run in trackio, on this machine (default: no trackio)")
    until: Literal["", StepName] = option("", "last step to run (default: all)")
    seconds: float = option(0.0, "time for base training, other stages in proportion (0: the scale's)")
    fresh: bool = option(False, "start again; earlier results are archived")
    on: str = option("", "hardware to plan for, like 8xH100 (default: this machine)", group="plan")


@dataclass(frozen=True)
class Setting:
    """Choices that follow from a command line and the machine."""

    request: PlanSettings
    name: str  # key of SCALES
    reason: str  # for that scale, in words
    depth: int
    gpus: int  # at work, on all nodes: a power of two, because the number of rows in a batch is one
    idle: int  # other GPUs
    accelerator: Accelerator | None  # GPU model; None: CPU only
    data: str  # with absolute folders
    obstacle: str = ""  # why the GPU of this machine cannot be used

    @property
    def world(self) -> Path | None:
        """The folder of the embedded world if it is the text: its first reader writes it, and it has the tasks too."""
        seed = world_seed(self.data)
        return None if seed is None else world_dir(seed)

    @property
    def own_text(self) -> bool:
        """True at a CPU scale if all text is in folders: the model learns to talk like the text."""
        return self.name in CPU_SCALES and not any(is_named(source) for source, _ in parse_data(self.data))

    @property
    def names_corpus(self) -> bool:
        """True if some text is a named corpus, which may have to be downloaded."""
        return any(source in CORPORA for source, _ in parse_data(self.data))

    def missing_tasks(self, tasks: TaskFiles) -> list[str]:
        """Return the tasks whose files are not all here and can be downloaded."""
        missing = [name for name, files in tasks.items() if files and not hub.is_here(files)]
        return [name for name in missing if self.has_files(tasks[name])]

    @property
    def scale(self) -> Scale:
        return SCALES[self.name]

    def has_files(self, files: Sequence[HubFile]) -> bool:
        """Return True if the files are here or can be downloaded."""
        # A mirror may have some of them. The network is asked last, because an answer takes time.
        return all(hub.is_here([file]) or (file.on_hub and has_network(self.request.on)) for file in files)

    @property
    def has_bundle(self) -> bool:
        """True if the public tasks of CORE are here or can be downloaded; for a model of own text nothing is."""
        # They are not on the hub, but on a server of their own.
        return hub.is_here(BUNDLE) or (not self.own_text and (bool(self.request.on) or not hub.refusal(BUNDLE_URL)))


def planned_nodes() -> int:
    """Return the number of nodes (tracks/scale/README.md); of a range like 1:2, the last one."""
    return int(os.environ.get("NANOCHAT_NODES", "1").rpartition(":")[2])


def has_gpu_device() -> bool:
    return any(Path(path).exists() for path in GPU_DEVICES)


def unusable_gpu() -> str:
    """Return why torch cannot use the GPU of this machine; "" if it can, or if there is none."""
    # Importing torch takes seconds: without a driver there is nothing to find.
    if not has_gpu_device():
        return ""
    from nanochat import runtime

    return runtime.unusable_gpu()


def find_hardware(named: str, nodes: int) -> tuple[int, Accelerator | None]:
    """Return count and kind for the GPUs named by --on, or of so many nodes; without local GPUs torch stays out."""
    if not named and (not has_gpu_device() or unusable_gpu()):
        return 0, None
    from nanochat.runtime import planned_hardware

    found = planned_hardware(named, nodes)
    return (0, None) if found[1].name == "CPU" else found


def usable_gpus(count: int) -> int:
    """Return the largest power of two that is not above `count`: the number of rows in a batch is one too."""
    return 2 ** (count.bit_length() - 1) if count else 0


def has_network(hardware: str) -> bool:
    """Return True if the hub answers; assumed for hardware named by --on."""
    return bool(hardware) or not hub.refusal("")


def choose_setting(request: PlanSettings) -> Setting:
    """Return the choices for this machine; a UserError if a flag names text that does not exist."""
    if request.wandb and request.trackio:
        raise UserError("--wandb and --trackio both name a tracker: keep one")
    count, accelerator = find_hardware(request.on, planned_nodes())
    data = request.data
    found = text_here()
    # A resumed run keeps the first choices.
    plan = {} if request.fresh or request.on else saved_record(stage_dir("speedrun", request.tag) / "plan.json")
    earlier = plan.get("settings", {})
    name = request.scale
    reason = "as asked"
    if name == "auto" and earlier:  # a lost GPU or network must not discard a trained model
        name = earlier["scale"]
        reason = "as this run started"
    elif name == "auto":
        # Only a GPU needs real text; the network is asked last.
        has_text = not count or data != "auto" or bool(found) or has_network(request.on)
        name, reason = choose_scale(count, accelerator, has_text)
    scale = SCALES[name]
    # Such a machine trains on its CPU only if that was asked for.
    obstacle = "" if request.on else unusable_gpu()
    if obstacle and (request.scale == "auto" or name not in CPU_SCALES):
        raise UserError(
            f"this machine has an NVIDIA GPU that cannot be used: {obstacle}. "
            "Install a newer driver, or train on the CPU with --scale=embedded"
        )
    if data == "auto" and scale.world:
        data = "world"
    elif data == "auto":
        # A text that has come since the run began repeats nothing.
        kept = earlier.get("data", "") if earlier.get("scale") == name else ""
        data = kept or found or "climbmix"
        if not (hub.is_here(CORPORA[data].files()) or has_network(request.on)):
            ways = "name a folder with --data=FOLDER"
            if kept:
                raise UserError(f"this run began with {kept}, which is not here: set NANOCHAT_HUB, or {ways}")
            raise UserError(f"--scale={name} needs real text, and this machine has none: {ways}")
    # Stages run in another folder.
    data = world_dir(request.seed).name if data == "world" else absolute_data(data)

    earlier_depth = earlier["depth"] if earlier.get("scale") == name else 0
    depth = request.depth or scale.depth or earlier_depth or evening_depth(accelerator)
    # The world has small batches: one GPU is faster than several.
    gpus = min(count, planned_nodes()) if scale.world else usable_gpus(count)
    return Setting(
        request=request,
        name=name,
        reason=reason,
        depth=depth,
        gpus=gpus,
        idle=count - gpus,
        accelerator=accelerator,
        data=data,
        obstacle=obstacle,
    )


def stage_flags(setting: Setting) -> dict[str, dict[str, str]]:
    """Return stage -> flags, from the scale, the machine and the command line."""
    request = setting.request
    flags = {}
    for name, stage in PLANNED_STAGES.items():
        own = scale_flags(setting.scale, stage.script, request.seconds)
        own["--tag"] = request.tag
        if name in TRAINING:
            own["--seed"] = str(request.seed)
        if stage.source:
            own["--source"] = stage.source
        # base_loss reads the text that the model was trained on.
        if name in TEXT_STAGES and name != "base_loss":
            own["--data"] = setting.data
        if setting.own_text and name in ("mid_train", "chat_sft"):
            own |= {"--mixture": "passages", "--chat-temperature": OWN_TEXT_TEMPERATURE}
        flags[name] = own
    base = flags["base_train"]
    base["--depth"] = str(setting.depth)
    base["--tokenizer-tag"] = request.tag
    # No fp8 on older GPUs. The CORE estimate stays in the command where its server cannot be reached: the run then
    # leaves it out by itself, and a plan that is made later, with the server there, repeats nothing.
    if setting.accelerator and not setting.accelerator.fp8:
        base.pop("--fp8", None)
    return flags


# Ranks that a stage can share its step by, at the scales' flags: 16 questions, and 32 rows of 2,048 tokens.
MOST_RANKS = {"chat_rl": 16, "chat_sft": 32}


def gpus_of(setting: Setting, stage: str) -> int:
    """Return the GPUs that a stage uses, of those that are there."""
    return min(setting.gpus, MOST_RANKS.get(stage, setting.gpus))


def launch_words(setting: Setting, stage: str = "") -> list[str]:
    """Return the words that start the ranks of a stage; none where one process does all."""
    nodes = planned_nodes()
    ranks = [f"--nproc_per_node={max(gpus_of(setting, stage) // nodes, 1)}"] if setting.gpus > 1 else []
    if nodes > 1:
        return [*TORCHRUN[:2], *ranks]  # tracks/scale/nodes.sh has the settings in which nodes differ from one another
    return [*TORCHRUN, *ranks] if ranks else []


def stage_options(name: str, flags: Flags, setting: Setting) -> list[str]:
    """Return the flags of a stage that do not change its result."""
    request = setting.request
    options = [f"--run={request.wandb}"] if request.wandb else []
    if request.trackio:
        options = [f"--run={request.trackio}", "--tracker=trackio"]
    if setting.obstacle:
        options.append("--device-type=cpu")
    # A node may fail, and the steps since a checkpoint are lost.
    if planned_nodes() > 1 and name in TRAINING and "--save-every" not in flags:
        options.append("--save-every=100")
    return options


def make_job(
    setting: Setting, flags: Mapping[str, Flags], tokens: int, tasks: TaskFiles, needs: Mapping[str, Sequence[str]]
) -> Job:
    """Return the main job with all steps.

    tokens: for base training, so that enough text is downloaded; 0: the corpus's default. tasks: task -> files that
    stages read; a job on an embedded world reads none of them. needs: stage -> tasks; without files of any of them the
    stage is left out.
    """
    request = setting.request
    skips = skip_reasons(setting, tasks, needs)
    # Several tasks share a file: each counts once, in a fixed order.
    task_files = list(dict.fromkeys(file for files in tasks.values() for file in files))
    if setting.world:
        # Its version and seed decide the content of all tasks.
        task_files = [HubFile(f"{setting.world.name}/world.json")]
    launch = launch_words(setting)
    # Downloads and the report are not stages: they leave no outcome. Downloads run beside other steps, so their lines
    # go to their logs alone.
    text = setting.data if setting.names_corpus else ""
    download = ["scripts.prepare", f"--data={text}", f"--tokens={tokens}"]
    if wants_bundle(setting):
        download.append("--optional-tasks=core")
    steps = [Step("download", download, skip=skips.get("download", ""), quiet=True)]
    if planned_nodes() > 1:
        what = f"NANOCHAT_NODES={os.environ['NANOCHAT_NODES']}: a job on several nodes"
        preflight = [module_of(what, PREFLIGHT)]
        steps.append(Step("preflight", preflight, launch=[*launch, "--max-restarts=0"]))
    missing = setting.missing_tasks(tasks)
    for name, stage in PLANNED_STAGES.items():
        if name == "mid_train":
            # What chat stages read is fetched by one process while the base model trains, not by all ranks after it.
            words = ["scripts.prepare", "--data=", f"--tasks={','.join(missing)}"]
            if wants_bundle(setting):
                words.append("--optional-tasks=core")  # its server may answer now, while the base model trains
            steps.append(Step("download_tasks", words, skip=skips.get("download_tasks", ""), quiet=True))
        # For some stages the text is an input, by --data.
        reads_text = name in TEXT_STAGES
        files = BUNDLE if name == "base_eval" and not setting.world else task_files
        # Tokenizers are trained and evaluated on the CPU.
        is_tokenizer = name.startswith("tok")
        step = Step(
            name,
            [stage.module, *flag_words(flags[name])],
            output=f"{name}/{request.tag}",
            parent=f"{stage.parent}/{request.tag}" if stage.parent else "",
            data=setting.data if reads_text else "",
            files=[] if reads_text else [list(astuple(file)) for file in files],
            launch=[] if is_tokenizer else launch_words(setting, name),
            options=[] if is_tokenizer else stage_options(name, flags[name], setting),
            skip=skips.get(name, ""),
            # Its server may refuse a download that the plan counted on.
            skip_without_files=NO_BUNDLE if files is BUNDLE else "",
        )
        steps.append(step)
    report = ["nanochat.report", "--out=report.md", f"--tag={request.tag}"]
    steps.append(Step("report", report, skip=skips.get("report", "")))
    words = [word for word in sys.argv[1:] if not word.startswith(("--fresh", "--cwd=", "--save="))]
    return Job(
        "speedrun",
        request.tag,
        steps,
        # The same words without --fresh, which would start again.
        resume=shlex.join(["bash", str(ROOT / "speedrun.sh"), *words]),
        closing=skipped_lines(steps) + talk_lines(steps, request.tag),
        settings={"scale": setting.name, "depth": setting.depth, "data": chosen_text(setting)},
    )


def chosen_text(setting: Setting) -> str:
    """Return the real text that a run with --data=auto has found, and keeps; empty if the command names its text."""
    return "" if setting.world or setting.request.data != "auto" else setting.data


def wants_bundle(setting: Setting) -> bool:
    """Return True if the files of CORE are to be downloaded."""
    return not setting.world and setting.has_bundle and not hub.is_here(BUNDLE)


def skip_reasons(setting: Setting, tasks: TaskFiles, needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return step -> reason to leave the step out; other steps run."""
    until = setting.request.until
    reasons = {}
    if not (setting.names_corpus or wants_bundle(setting)):
        reasons["download"] = NOTHING
    if not (setting.missing_tasks(tasks) or wants_bundle(setting)):
        reasons["download_tasks"] = NOTHING
    if not setting.world:
        if not setting.has_bundle:
            reasons["base_eval"] = NO_BUNDLE
        for name, choices in needs.items():
            # The conversations of a model for the user's own text are made from the text.
            own_chats = setting.own_text and name == "mid_train"
            if not own_chats and not any(setting.has_files(tasks[task]) for task in choices):
                reasons[name] = f"no files of {' or '.join(choices)} are here or can be downloaded"
    if "mid_train" in reasons:
        reasons.setdefault("download_tasks", "mid_train is left out")
    for name, stage in PLANNED_STAGES.items():  # in order, so that a reason reaches the stages after it
        if stage.parent in reasons:
            reasons.setdefault(name, f"{stage.parent} is left out")
    if until:
        for name in STEPS[STEPS.index(until) + 1 :]:
            reasons[name] = f"after --until={until}"
    return reasons


def skipped_lines(steps: Sequence[Step]) -> list[str]:
    """Return a line for each reason to leave steps out."""
    reasons: dict[str, list[str]] = {}  # reason -> names; empty: these steps run
    for step in steps:
        reasons.setdefault(step.skip, []).append(step.name)
    return [f"left out: {', '.join(names)} ({reason})" for reason, names in reasons.items() if reason]


def talk_lines(steps: Sequence[Step], tag: str) -> list[str]:
    """Return the commands, for any folder, to chat with the last model; nothing if the job trains none."""
    trained = {step.name for step in steps if not step.skip}
    # MODELS is in training order.
    sources = [source for source, stage in MODELS.items() if stage in trained]
    if not sources:
        return []
    base = shlex.quote(str(base_dir().resolve()))
    python = f"cd {shlex.quote(str(ROOT))} && NANOCHAT_BASE_DIR={base} .venv/bin/python"
    model = f"-i {sources[-1]} -g {tag}"
    return [
        f"talk to it: {python} -m scripts.chat_cli {model}",
        f"in a browser: {python} -m scripts.chat_web {model}",
    ]
