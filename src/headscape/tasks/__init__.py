"""Tasks with one correct answer, by name; all are generated, none is downloaded."""

from difflib import get_close_matches

from headscape.errors import InputError
from headscape.tasks import algorithmic, chomsky
from headscape.tasks.retrieval import RETRIEVAL
from headscape.tasks.task_definition import Example, Task

__all__ = ["TASKS", "Example", "Task", "task"]

TASKS: dict[str, Task] = {
    item.name: item for item in (*chomsky.TASKS, *algorithmic.TASKS, *RETRIEVAL.values())
}


def task(name: str) -> Task:
    """Return the task of a name."""
    if name not in TASKS:
        close = get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"unknown task {name!r}: {hint}there are {', '.join(TASKS)}.")
    return TASKS[name]
