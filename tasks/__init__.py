"""The table with all tasks, and functions that open tasks by name.

Others import from here: TASKS, JUDGED, SFT_MIXTURE, pick, open_mixture, open_conversations, open_tasks, scored_kinds,
task_to_learn. A new task is a row in sets.py, and perhaps a new module; docs/tasks.md has a row for each task. Tracks
add tasks by nanochat/registry.py.
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
# What chat_sft learns from. A little of each task: the model has the abilities by now, and learns how to answer.
SFT_MIXTURE = (
    "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk@10000,Identity,SimpleSpelling@300,SpellingBee@300,"
    "Multi-Turn@10000"
)
WORLD_TASKS = (*WORLD_MEAN, "World-Talk", "World-Questions")


def open_mixture(config: ChatTuneSettings, default: str, tokenizer: str, split: str = "train") -> mixing.Mixture:
    """Return the conversations that a stage learns from, or those for its validation.

    default: the stage's mixture, used where the settings name none; a model of an embedded world learns from the world
    instead. tokenizer: the run that trained it.
    """
    return open_conversations(config.mixture, default, tokenizer, split, config.seed)


def open_conversations(
    mixture: str, default: str, tokenizer: str, split: str = "train", seed: int = 0
) -> mixing.Mixture:
    """Return the conversations of a mixture, as `open_mixture` does."""
    usual = default if learned_world(tokenizer) is None else world.MIXTURE
    return mixing.mix(TASKS, mixture, split, seed, usual, tokenizer)


def task_to_learn(name: str, tokenizer: str) -> tuple[str, Task, Task]:
    """Return a task for reinforcement learning: name, train split, test split, in the form that training reads.

    name: empty for GSM8K, or for a model of a world its sums.
    """
    default = "GSM8K" if learned_world(tokenizer) is None else "World-Sums"
    name = find_task(name or default, JUDGED)
    data = TASKS[name].to_learn
    # Spelling tasks need the tokenizer.
    return name, data("train", tokenizer), data("test", tokenizer)


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


def scored_kinds(names: str, tokenizer: str) -> list[str]:
    """Return the kind of each task that a training run scores for --eval-metrics-tasks; no file is read."""
    default = CHAT_CORE if learned_world(tokenizer) is None else WORLD_TASKS
    kinds = [TASKS[name].task.kind for name in pick(names, JUDGED) or default]
    return kinds if names else [kind for kind in kinds if kind == "categorical"]
