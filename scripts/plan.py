"""Plan the main job: its steps on this machine, their time, disk and dollars. speedrun.sh runs the plan.

python -m scripts.plan --dry-run
python -m scripts.plan --on=8xH100
"""

import os

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.estimate import base_run, job_lines
from nanochat.jobs.plan import PlanSettings, choose_setting, make_job, stage_flags
from nanochat.jobs.runner import Job, archive
from nanochat.log import print0
from nanochat.paths import hold_folder, stage_dir
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
class Config(PlanSettings):
    """Print the plan of the main job: steps, time, disk, dollars."""

    dry_run: bool = option(False, "print the plan and end: nothing is started or written", group="plan")
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
    if config.on:
        raise UserError("--on is for a plan of other hardware: add --dry-run")
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
