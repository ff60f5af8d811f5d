"""Tasks with a right answer, by name; every one is generated, none is downloaded."""

from difflib import get_close_matches

from headscape.errors import InputError
from headscape.tasks import algorithmic, chomsky
from headscape.tasks.base import Example, Task
from headscape.tasks.retrieval import RETRIEVAL

__all__ = ["TASKS", "Example", "Task", "task"]

TASKS: dict[str, Task] = {
    item.name: item for item in (*chomsky.TASKS, *algorithmic.TASKS, *RETRIEVAL.values())
}


def task(name: str) -> Task:
    """A task by name."""
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"unknown task {name!r}: {hint}there are {', '.join(TASKS)}.")
    return TASKS[name]
