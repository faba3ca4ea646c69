"""What the main job will do: scale, text, the command of each step, and what it takes; all before anything starts.

A plan is a folder, `<base>/speedrun/<tag>`: plan.json, and a log and a record for each step.
"""

import functools
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanochat.data import hub
from nanochat.data.corpus import AUTO, CORPORA, check_data, hub_files
from nanochat.data.hub import HubFile
from nanochat.evals.core_tasks import BUNDLE
from nanochat.hardware import Accelerator, parse_named
from nanochat.jobs.scales import SCALES, Scale, choose, evening_depth, flags_of
from nanochat.log import duration
from nanochat.outcome import ROOT
from nanochat.paths import base_dir, stage_dir
from nanochat.report.card import terminal_table
from nanochat.stages import STAGES

PATIENCE = 3.0  # seconds that a hub may take to answer
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # where a machine has none of them, it has no GPU
BEFORE, LAST = ("world", "download"), "report"
JUDGES = {stage.name: stage for stage in STAGES if stage.source}
STEPS = (*BEFORE, *(stage.name for stage in STAGES if stage.source != "base"), LAST)  # a base model cannot chat
PARENTS = {stage.name: stage.parent for stage in STAGES}
STAGED = [step for step in STEPS if step in PARENTS]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
SEEDED = ("base_train", "mid_train", "chat_sft", "chat_rl")
TRAINED = 4  # stages that leave checkpoints
CHECKPOINT = 12  # bytes of one for each parameter, at most
TEXT = 2.5  # bytes on disk for each token of the hub's text


@dataclass(frozen=True)
class Step:
    """name: a stage's, or one of BEFORE, or LAST. words: its command behind `python`, which decides what comes of it.

    launch: what stands before the module, where several GPUs work. side: flags that change no result. left_out: why it
    is not to be done.
    """

    name: str
    words: list[str]
    launch: list[str]
    side: list[str]
    left_out: str = ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, *self.launch, "-m", *self.words, *self.side]


@dataclass(frozen=True)
class Plan:
    """environment: variables for all steps. files: what stages read beside the text, by kind: [path, repo, revision].

    again: the command that goes on with it.
    """

    tag: str
    scale: str
    depth: int
    data: str
    environment: dict[str, str]
    files: dict[str, list[list]]
    steps: list[Step]
    again: str

    @property
    def folder(self) -> Path:
        return folder(self.tag)

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def left_out(self) -> list[str]:
        """A line for each reason."""
        reasons: dict[str, list[str]] = {}
        for step in self.steps:
            reasons.setdefault(step.left_out, []).append(step.name)
        return [f"left out: {', '.join(names)} ({why})" for why, names in reasons.items() if why]

    def save(self) -> dict[str, Any]:
        return asdict(self)


def folder(tag: str) -> Path:
    return stage_dir("speedrun", tag)


def read(run: Path) -> Plan:
    """The plan in a run's folder."""
    record = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    return Plan(**record | {"steps": [Step(**step) for step in record["steps"]]})


def record_of(run: Path, step: str) -> dict[str, Any]:
    """What is written of a step (words, inputs, whether it is finished) or of the "plan"; empty: it never began."""
    path = run / f"{step}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# ---- what is here ----


def hardware(named: str) -> tuple[int, Accelerator | None]:
    """How many GPUs of which kind: as named (8xH100), or of this machine; torch, slow, is asked only if it has some."""
    if named:
        return parse_named(named)
    if not any(Path(path).exists() for path in DRIVERS) and not shutil.which("nvidia-smi"):
        return 0, None
    from nanochat.runtime import planned_hardware

    count, accelerator = planned_hardware("")
    return (0, None) if accelerator.name in ("CPU", "MPS") else (count, accelerator)


@functools.lru_cache
def online(named: str) -> bool:
    """Whether there is a hub to fetch from; of hardware that is only named it is supposed."""
    if named:
        return True
    from huggingface_hub import constants  # reads HF_ENDPOINT, HF_HUB_OFFLINE

    if hub.mirror() or constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:  # an answer, too
        return True
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def _text_here() -> str:
    return next((name for name in AUTO if hub.is_here(CORPORA[name].files())), "")


def _absolute(data: str, cwd: Path) -> str:
    """--data with the folders in it named from the root: the stages run elsewhere."""

    def placed(source: str) -> str:
        path = cwd / Path(source.removeprefix("folder:")).expanduser()
        return f"folder:{path.resolve()}" if path.is_dir() and source not in CORPORA else source

    if (whole := placed(data)) != data:
        return whole
    parts = (re.fullmatch(r"(.*?)(:[\d.]+)?", part.strip()).groups("") for part in data.split(","))
    return ",".join(placed(source) + share for source, share in parts)


# ---- the plan ----


@dataclass(frozen=True)
class Choice:
    """What a command line comes to on this machine. own: whether the run writes its world, and reads all from there.

    count: of GPUs at work, a power of two like the rows of a step. idle: the others. named: hardware that is to come.
    """

    name: str
    why: str
    scale: Scale
    depth: int
    count: int
    idle: int
    accelerator: Accelerator | None
    data: str
    own: bool
    world: Path
    named: str

    def can_have(self, files: Sequence[HubFile]) -> bool:
        fetched = all(file.repo and not file.repo.startswith("local/") for file in files)
        return self.own or hub.is_here(files) or (fetched and online(self.named))

    @property
    def environment(self) -> dict[str, str]:
        if self.own:
            return {"NANOCHAT_HUB": str(self.world)}
        stale = self.data != "world" and hub.world_dir().exists()  # what it lacks would not be fetched
        return {"NANOCHAT_WORLD": "off"} if stale and online(self.named) else {}


def look(config: Any) -> Choice:
    """At this machine; ValueError where a flag names what is not there."""
    for name, value, known in (("scale", config.scale, ("auto", *SCALES)), ("until", config.until, ("", *STEPS))):
        if value not in known:
            raise ValueError(f"--{name}={value} is not known, take one of {', '.join(filter(None, known))}")
    count, accelerator = hardware(config.on)
    data, name, why = config.data, config.scale, "as asked"
    if data != "auto":
        data = _absolute(data, Path(config.cwd or "."))
        check_data(data)
    begun = {} if config.fresh or config.on else record_of(folder(config.tag), "plan")
    if name == "auto" and begun:  # a GPU or a network that has gone must not throw away what is trained
        name, why = begun["scale"], "as this run began"
    elif name == "auto":
        name, why = choose(count, accelerator, not count or data != "auto" or bool(_text_here()) or online(config.on))
    scale = SCALES[name]
    at_work = min(count, 1) if scale.world else 1 << count.bit_length() >> 1  # a world's steps are of a few rows
    if data == "auto":
        data = "world" if scale.world else _text_here() or ("climbmix" if online(config.on) else "")
    if not data:
        raise ValueError(f"--scale={name} learns from real text, and there is none: name a folder with --data=FOLDER")
    mirror, world = hub.mirror(), hub.world_dir()
    own = data == "world" and not (mirror and (mirror / "datasets/local/world").is_dir())
    world = world if config.seed == 1 else world.with_name(f"{world.name}-{config.seed}")
    known = begun.get("depth", 0) if begun.get("scale") == name else 0
    depth = config.depth or scale.depth or known or evening_depth(accelerator)
    return Choice(name, why, scale, depth, at_work, count - at_work, accelerator, data, own, world, config.on)


def make(config: Any, tasks: Mapping[str, Sequence[HubFile]], needs: Mapping[str, str]) -> tuple[Plan, list[str]]:
    """The plan that a command line asks for, and the lines that tell it; ValueError where it cannot be.

    tasks: the files of each task that stages read. needs: stage -> the task without whose files it is left out.
    """
    chosen = look(config)
    data, own, flags = chosen.data, chosen.own, _flags(chosen, config)
    on = f"{chosen.count}x{chosen.accelerator.name}" if chosen.count else ""
    dry = {} if chosen.scale.disk else _dry_run(flags["base_train"], on if config.on or chosen.idle else "")
    commands = {
        step: [f"scripts.{JUDGES[step].script if step in JUDGES else step}", *_words(flags[step])] for step in STAGED
    }
    commands["world"] = ["nanochat.world", f"--out={chosen.world}", f"--seed={config.seed}"]
    commands["download"] = ["scripts.prepare", f"--data={data}", f"--tokens={dry.get('tokens', 0)}"]
    commands[LAST] = ["nanochat.report", "--out=report.md", f"--tag={config.tag}"]
    mirrored = data == "world" and not own
    lacks = {} if own else {"world": f"the text is {'the world of NANOCHAT_HUB' if mirrored else data}"}
    if not hub_files(data):
        lacks["download"] = "nothing is to be fetched"
    if not chosen.can_have(BUNDLE):
        lacks["base_eval"] = "there is no eval_bundle, and none to fetch: NANOCHAT_HUB may name a mirror that has one"
    for step, task in needs.items():
        if not chosen.can_have(tasks[task]):
            lacks[step] = f"the files of {task} are not here, and not to be fetched"
    several = [*TORCHRUN, f"--nproc_per_node={chosen.count}"] if chosen.count > 1 else []
    steps = []
    for step in STEPS:
        launch = several if step in STAGED and not step.startswith("tok") else []
        side = [f"--run={config.wandb}"] if config.wandb and step in STAGED else []
        steps.append(Step(step, commands[step], launch, side, _why_not(step, lacks, config.until)))
    files = {"bundle": BUNDLE, "tasks": dict.fromkeys(file for some in tasks.values() for file in some)}
    files = {kind: [[file.path, file.repo, file.revision] for file in some] for kind, some in files.items()}
    plan = Plan(config.tag, chosen.name, chosen.depth, data, chosen.environment, files, steps, _again(config, data))
    return plan, _tell(plan, chosen, dry, config)


def _why_not(step: str, lacks: dict[str, str], until: str) -> str:
    """Why a step is left out, or nothing; so are those that go on from it."""
    if until and STEPS.index(step) > STEPS.index(until):
        lacks[step] = f"after --until={until}"
    elif (parent := PARENTS.get(step)) in lacks:
        lacks.setdefault(step, f"{parent} is left out")
    return lacks.get(step, "")


def _flags(chosen: Choice, config: Any) -> dict[str, dict[str, str]]:
    """Of each stage: those of the scale, and what follows from the machine and the command line."""
    flags = {}
    for step in STAGED:
        own = flags[step] = flags_of(chosen.scale, JUDGES[step].script if step in JUDGES else step, config.seconds)
        own["--tag"] = config.tag
        if step in SEEDED:
            own["--seed"] = str(config.seed)
        if step in JUDGES:
            own["--source"] = JUDGES[step].source
        if step in ("tok_train", "tok_eval", "base_train"):
            own["--data"] = chosen.data
        if chosen.data != "world":
            own.pop("--mixture", None)  # it is of the world's tasks, those of the hub are the scripts' own choice
    base = flags["base_train"]
    base |= {"--depth": str(chosen.depth), "--tokenizer-tag": config.tag}
    if not chosen.can_have(BUNDLE):
        base.pop("--core-metric-every", None)
    if chosen.accelerator and not chosen.accelerator.fp8:
        base.pop("--fp8", None)
    return flags


def _words(flags: Mapping[str, str]) -> list[str]:
    return [f"{flag}={value}" if value else flag for flag, value in flags.items()]


def _dry_run(flags: dict[str, str], named: str) -> dict[str, Any]:
    """What scripts.base_train says that a run will take: parameters, tokens, memory, time, dollars."""
    flags = flags | ({"--on": named} if named else {})
    command = [sys.executable, "-m", "scripts.base_train", "--dry-run", *_words(flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1].removeprefix("error: "))
    found = {"lines": re.findall(r"^(?:memory of a rank|time |that is more).*", done.stdout, re.MULTILINE)}
    for key, label in (("parameters", "Number of parameters"), ("tokens", "Number of training tokens")):
        number = re.search(rf"^{label}: ([\d,]+)$", done.stdout, re.MULTILINE)
        found[key] = int(number[1].replace(",", "")) if number else 0
    time = re.search(r"^time (?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)? on ", done.stdout, re.MULTILINE)
    found["seconds"] = (
        sum(float(part or 0) * unit for part, unit in zip(time.groups(), (3600, 60, 1), strict=True)) if time else 0
    )
    return found


def _again(config: Any, data: str) -> str:
    """The command that goes on with this run, from anywhere; --fresh would start anew."""
    words = {"scale": config.scale, "depth": config.depth, "tag": config.tag, "seed": config.seed}
    words["data"] = config.data if config.data == "auto" else data  # as a folder of any place
    words |= {"wandb": config.wandb, "until": config.until, "seconds": config.seconds and f"{config.seconds:g}"}
    said = [f"--{name}={value}" for name, value in words.items() if value != getattr(type(config), name)]
    return shlex.join(["bash", str(ROOT / "speedrun.sh"), *said])


# ---- what is told of it ----


def _tell(plan: Plan, chosen: Choice, dry: Mapping, config: Any) -> list[str]:
    """A table of the steps, and what they take together; ValueError where the disk has too little room."""
    scale, gpu, mirror = chosen.scale, chosen.accelerator, hub.mirror()
    measured = not config.seconds and chosen.depth == scale.depth
    rows, left = [], []  # seconds of the steps to do, 0 where they are not known
    for step in [step for step in plan.steps if not step.left_out]:
        record = {} if config.fresh else record_of(plan.folder, step.name)
        same = record.get("words") == step.words
        done = same and record["finished"]
        seconds = (record["seconds"] if done else measured and scale.seconds.get(step.name)) or _clock(step, dry)
        tokens = (dry.get("tokens") or (measured and scale.tokens)) if step.name == "base_train" else 0
        shown = f"{tokens / 1e6:,.1f} M" if tokens else None, duration(seconds) if seconds else None
        rows.append([step.name, *shown, "finished" if done else "begun" if same else ""])
        left += [] if done else [seconds]
    total, unknown = sum(left), left.count(0)
    columns = [["Step", ""], ["Tokens", ""], ["Time", ""], ["State", ""]]
    larger = (chosen.depth / scale.depth) ** 2.5 if scale.depth else 1  # what a model with few words grows by
    needed = CHECKPOINT * dry["parameters"] * (TRAINED + 2) + TEXT * dry["tokens"] if dry else 1e9 * scale.disk * larger
    held = sum(_size(stage_dir(stage, plan.tag)) for stage in SEEDED)
    there = next(path for path in (base_dir(), *base_dir().absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not config.on and free + held < needed:
        missing = f"{needed / 1e9:.1f} GB are needed, {(needed - held - free) / 1e9:.1f} are missing"
        raise ValueError(f"{base_dir()} has too little room: {missing}; free some, or set NANOCHAT_BASE_DIR")
    takes = f"about {duration(total)}" + (f" and {unknown} steps of unknown length" if unknown else "")
    takes += "" if dry else f", {scale.memory * max(1, larger):.1f} GB of memory"
    dollars = f"{gpu.dollars * chosen.count * total / 3600:,.2f}" if gpu and gpu.dollars else "n/a"
    gpus = f"{chosen.count} x {gpu.name}" if gpu else "no GPU"
    gpus += f", {chosen.idle} more are idle (rows of a step are a power of two)" if chosen.idle else ""
    world = f"the embedded world in {chosen.world}" if chosen.own else ""
    return [
        f"scale: {chosen.name}, {scale.about}: {chosen.why}",
        f"machine: {os.cpu_count()} cores, {gpus}; depth {chosen.depth}",
        f"text: {world or plan.data}" + (f"; data sets of the mirror {mirror}" if mirror and not world else ""),
        terminal_table({"title": "", "columns": columns, "rows": rows}),
        *plan.left_out(),
        *(f"base_train: {line}" for line in dry.get("lines", [])),
        f"in all: {takes}, {needed / 1e9:.1f} GB of disk ({free / 1e9:.1f} are free), dollars {dollars}",
        f"logs and records: {plan.folder}",
    ]


def _clock(step: Step, dry: Mapping) -> float:
    """Seconds that a step is to take, as far as it is told or reckoned."""
    flags = dict(word.split("=", 1) for word in step.words[1:] if "=" in word)
    reckoned = dry.get("seconds", 0.0) if step.name == "base_train" else 0.0
    return float(flags.get("--target-seconds", reckoned))


def _size(place: Path) -> int:
    """Of what a run has left there by now."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) if place.exists() else 0
