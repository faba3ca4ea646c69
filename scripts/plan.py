"""Look at this machine and say what the main job will do on it; speedrun.sh then does it.

python -m scripts.plan
python -m scripts.plan --on=8xH100
"""

import os
from dataclasses import dataclass

from nanochat.config import Count, option, run
from nanochat.jobs.scales import SCALES
from nanochat.log import print0
from tasks import CHAT_CORE, TASKS

# What the stages read; and the task without whose files a stage is left out.
READ = (*CHAT_CORE, "Questions", "SmolTalk", "Identity", "SimpleSpelling")
NEEDS = {"mid_train": "ARC-Easy", "chat_rl": "GSM8K"}


@dataclass(frozen=True)
class Config:
    """Say what the main job will do on this machine, and what that takes."""

    scale: str = option("auto", f"auto, or one of {', '.join(SCALES)}", group="run")
    depth: Count = option(0, "layers of the model, 0: of the scale", group="run", unit="LAYERS", least=1)
    data: str = option("auto", "folder of text, corpus by name, or a mix of them", group="run")
    tag: str = option("default", "name of the run's folders", group="run")
    seed: Count = option(1, "of the embedded world, of weights and of the order of data", group="run", least=0)
    wandb: str = option("", "name for W&B; empty: do without", group="run", unit="NAME")
    until: str = option("", "the last step to do", group="run", unit="STAGE")
    seconds: float = option(0.0, "of base training; other clocks in proportion; 0: of the scale", group="run", least=0)
    fresh: bool = option(False, "start anew, what is there is set aside", group="run")
    on: str = option("", "hardware to plan for, like 8xH100; empty: this machine", group="plan")
    cwd: str = option("", "folder that --data is named from", group="plan", unit="FOLDER")
    start: Count = option(-1, "for speedrun.sh: keep the plan, and tell this descriptor its folder", group="plan")


def main(config: Config) -> None:
    from nanochat.jobs.plan import STAGED, folder, make
    from nanochat.jobs.runner import set_aside, take
    from nanochat.paths import write_json

    home = folder(config.tag)
    starts = config.start >= 0
    if starts:
        home.mkdir(parents=True, exist_ok=True)
        take(os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o666), config.tag)
    plan, lines = make(config, {name: TASKS[name].files() for name in READ}, NEEDS)
    print0("\n== plan", *lines, sep="\n")
    if starts:
        for stage in STAGED if config.fresh else []:
            if kept := set_aside(plan, stage):
                print0(f"--fresh: what {stage} had left is kept in {kept}")
        write_json(home / "plan.json", plan.save())
        os.write(config.start, str(home.resolve()).encode())


if __name__ == "__main__":
    run(main, Config)
