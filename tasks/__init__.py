"""The table of tasks, name -> what opens a split of it, and how those that a user names are opened."""

from nanochat.data.hub import is_here
from nanochat.log import print0
from tasks import chats, gsm8k, hrm8k, humaneval, mixing, multiple_choice, questions, spelling
from tasks.common import DataSet, Task, TaskError, pick

TASKS: dict[str, DataSet] = {
    **multiple_choice.SETS,
    **gsm8k.SETS,
    **hrm8k.SETS,
    **humaneval.SETS,
    **questions.SETS,
    **spelling.SETS,
    **chats.SETS,
}
JUDGED = [name for name in TASKS if TASKS[name].task.kind != "chat"]
CHAT_CORE = ("ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "GSM8K", "HumanEval")  # what ChatCORE is the mean of
OF_WORLDS = ("ARC-Easy-Named", "ARC-Challenge-Named", "Questions")  # of which no hub has the last


def mixture(spec: str, split="train", seed=0, default="", tokenizer="default") -> mixing.Mixture:
    """Conversations to learn from, or for validation, of the tasks that a spec like `mmlu:3,json:PATH` names.

    default: a spec that is taken as far as its tasks, and so many rows, are here. tokenizer: as tasks have it.
    """
    spec = spec or default
    return mixing.mix(spec, TASKS, split, seed, tokenizer, as_here=spec == default)


def open_tasks(names: str, unsafe_exec: bool = False, tokenizer: str = "default") -> dict[str, Task]:
    """Those named, to be evaluated; or those of CHAT_CORE of which the hub has the files, and of a world OF_WORLDS."""

    def opened(name: str) -> Task:
        unsafe = {"unsafe": unsafe_exec} if TASKS[name].task.kind == "program" else {}
        return TASKS[name](tokenizer=tokenizer, **unsafe)

    if names:
        return {name: opened(name) for name in pick(names, JUDGED)}
    found = {}
    for name in CHAT_CORE + OF_WORLDS * is_here(TASKS[OF_WORLDS[-1]].files()):
        try:
            found[name] = opened(name)
        except TaskError:
            raise
        except ValueError as error:  # of the hub or the sandbox: a rank is told no more by the one that fetched for it
            print0(f"tasks: {name} is left out: {' '.join(str(error).split())}")
    return found
