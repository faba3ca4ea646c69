"""Plan the main job: its steps on this machine, their time, disk and dollars. speedrun.sh runs the plan.

python -m scripts.plan --dry-run
python -m scripts.plan --on=8xH100
"""

import os
from typing import Literal

from nanochat.config import Count, option, options, run_script
from nanochat.jobs.estimate import base_run, job_lines
from nanochat.jobs.plan import StepName, choose_setting, make_job, stage_flags
from nanochat.jobs.runner import Job, archive
from nanochat.jobs.scales import ScaleName
from nanochat.log import print0
from nanochat.paths import hold_folder, stage_dir
from nanochat.settings import TagSettings, TextSettings
from nanochat.stages import CHAT_CORE
from tasks import TASKS

# Data sets that the stages read on real text. NEEDS: a stage is left out if none of its tasks has its files.
READ = (*CHAT_CORE, "SmolTalk", "Multi-Turn", "Identity", "SimpleSpelling")
NEEDS = {
    "mid_train": ("SmolTalk", "Multi-Turn"),
    "chat_eval_mid": CHAT_CORE,
    "chat_eval_sft": CHAT_CORE,
    "chat_rl": ("GSM8K",),
    "chat_eval_rl": CHAT_CORE,
}


@options("run")
class Config(TextSettings, TagSettings):
    """Print the plan of the main job: steps, time, disk, dollars."""

    tag = "default"

    scale: Literal["auto", ScaleName] = option("auto", "size of the run: docs/speedrun.md")
    depth: Count = option(0, "layers of the model (0: the scale's)", least=1)
    seed: Count = option(1, "seed of the embedded world, the weights and the data order")
    wandb: str = option("", "name of the run in W&B (default: no W&B)")
    until: Literal["", StepName] = option("", "last step to run (default: all)")
    seconds: float = option(0.0, "time for base training, other stages in proportion (0: the scale's)")
    fresh: bool = option(False, "start again; earlier results are archived")
    dry_run: bool = option(False, "print the plan and end: nothing is started or written", group="plan")
    on: str = option("", "hardware to plan for, like 8xH100 (default: this machine)", group="plan")
    cwd: str = option("", "folder that a relative --data starts from", group="plan")
    save: Count = option(
        -1, "for speedrun.sh: save the plan and write the name of its folder to this file descriptor", group="plan"
    )


def main(config: Config) -> None:
    if config.cwd:
        os.chdir(config.cwd)
    if config.dry_run or config.save < 0:
        plan_job(config)
        return
    # Locked before the plan is made: a running job with this tag keeps its plan.
    with hold_folder(stage_dir("speedrun", config.tag)):
        job = plan_job(config)
        for step in job.steps if config.fresh else []:
            archive(job, step)
        job.save()
    os.write(config.save, str(job.folder.resolve()).encode())


def plan_job(config: Config) -> Job:
    """Plan the job, and print the plan."""
    setting = choose_setting(config)
    flags = stage_flags(setting)
    base = base_run(flags["base_train"], setting)
    job = make_job(setting, flags, base.tokens, {name: TASKS[name].files() for name in READ}, NEEDS)
    print0("\n== plan", *job_lines(job, setting, base), sep="\n")
    return job


if __name__ == "__main__":
    run_script(main)
