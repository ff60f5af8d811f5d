"""Tasks with one correct answer, by name; all are generated, none is downloaded."""

from headscape.data.tasks import algorithmic, chomsky
from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.data.tasks.task_definition import Example, Task
from headscape.errors import unknown

__all__ = ["TASKS", "Example", "Task", "task"]

TASKS: dict[str, Task] = {
    item.name: item for item in (*chomsky.TASKS, *algorithmic.TASKS, *RETRIEVAL.values())
}


def task(name: str) -> Task:
    """Return the task of a name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
