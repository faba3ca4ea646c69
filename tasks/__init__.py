"""The table with all tasks, and functions that open tasks by name.

Others import from here: TASKS, JUDGED, pick, open_tasks, task_to_learn, train_on_chats. A new task is a row
in sets.py, and perhaps a new module; docs/tasks.md has a row for each task. Tracks add tasks by nanochat/registry.py.
"""

from nanochat import registry
from nanochat.data.corpus import learned_world
from nanochat.data.hub import HubError
from nanochat.evals.sandbox import NoSandbox
from nanochat.log import print0
from nanochat.settings import ChatTuneSettings
from nanochat.stages import CHAT_CORE, WORLD_MEAN
from tasks import mixing, world
from tasks.common import Task, find_task, pick
from tasks.sets import SETS
from tasks.table import TaskTable

TASKS = TaskTable(SETS)  # with those of tracks, and augmented ones
# Tasks with a verdict.
JUDGED = [*(name for name in SETS if SETS[name].task.kind != "chat"), *registry.TASKS.modules]
WORLD_TASKS = (*WORLD_MEAN, "World-Talk", "World-Questions")


def train_on_chats(stage: str, config: ChatTuneSettings, default: str, supervise: str) -> None:
    """Train a stage on a mixture of conversations, or print its plan: the whole of such a script.

    default: mixture to take if the settings name none; a model of an embedded world learns from the world instead.
    supervise: learn "all" tokens, or those that the "assistant" writes.
    """
    # Slow imports stay out of --help.
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.run import training
    from nanochat.tuning import print_plan, tune_on_chats

    def mixture(tokenizer: str, split: str = "train") -> mixing.Mixture:
        chosen = default if learned_world(tokenizer) is None else world.MIXTURE
        return mixing.mix(TASKS, config.mixture, split, config.seed, chosen, tokenizer)

    if config.dry_run:
        print_plan(config, mixture)
        return
    with training(stage, config) as trainer:
        tokenizer = trainer.tokenizer_tag
        chats, new_chats = mixture(tokenizer), mixture(tokenizer, "validation")
        evaluations = chat_validation(trainer, new_chats, supervise) + task_scores(trainer, open_tasks)
        metrics = {}
        for split, rows in (("train", chats.examples), ("val", new_chats.examples)):
            # Augmented ones too, such as AQUA~styles:2.
            if aqua := sum(rows[name] for name in rows if name.startswith("AQUA")):
                metrics[f"aqua_{split}_examples"] = aqua
        tune_on_chats(trainer, chats, new_chats, supervise, evaluations, metrics)


def task_to_learn(name: str, tokenizer: str) -> tuple[str, Task, Task]:
    """Return a task for reinforcement learning: name, train split, test split.

    name: empty for GSM8K, or for a model of a world its sums.
    """
    default = "GSM8K" if learned_world(tokenizer) is None else "World-Sums"
    name = find_task(name or default, JUDGED)
    # Spelling tasks need the tokenizer.
    return name, TASKS[name]("train", tokenizer), TASKS[name]("test", tokenizer)


def open_tasks(names: str, unsafe_exec: bool = False, tokenizer: str = "default") -> dict[str, Task]:
    """Return the test splits of the named tasks.

    Without names: ChatCORE's tasks, or the world's for a tokenizer that learned from a world; tasks without files, or
    without a sandbox for their programs, are left out with a printed line.
    """
    default = CHAT_CORE if learned_world(tokenizer) is None else WORLD_TASKS
    found = {}
    for name in pick(names, JUDGED) or default:
        try:
            found[name] = TASKS[name](tokenizer=tokenizer, unsafe_exec=unsafe_exec)
        except (HubError, NoSandbox) as error:
            if names:
                raise
            print0(f"tasks: {name} is left out: {error}")
    return found
