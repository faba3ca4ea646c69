"""The table of tasks: name -> what opens a split of it."""

from collections.abc import Callable

from tasks import gsm8k, multiple_choice
from tasks.common import Task

TASKS: dict[str, Callable[..., Task]] = {**multiple_choice.SETS, **gsm8k.SETS}
