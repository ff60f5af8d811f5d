"""Whether a folder can be trained into, and where a resumed run continues.

Resuming continues from the newest undamaged checkpoint, or starts at the beginning if there is
none, so the same command with `resume` can be repeated until the run is done. A run without any
checkpoint, for example because it diverged early, can be started over in the same
folder with any configuration.
"""

from collections.abc import Callable
from pathlib import Path

from headscape.errors import InputError
from headscape.io.folder_lock import FolderLock
from headscape.train.config.train_config import NAMES, TrainConfig
from headscape.train.distributed.world import World
from headscape.train.run import CHANGEABLE, CONFIG, read_config
from headscape.train.storage import checkpoint
from headscape.train.storage.checkpoint import Checkpoint


def check_folder(config: TrainConfig, out: Path, lock: FolderLock, *, resume: bool) -> None:
    """Refuse a folder that is in use, is not a run, or contains a different run.

    Takes the lock if the folder contains a run.
    """
    if not (out / CONFIG).is_file():
        if out.exists() and not (out.is_dir() and _has_only_hidden_files(out)):
            raise InputError(f"{out} exists and is not a run: choose a different folder.")
        return
    lock.acquire()
    if not checkpoint.has_any(out):
        # A config.toml of something else must not be replaced.
        read_config(out)
        return
    if not resume:
        raise InputError(
            f"{out} already contains a run: add --resume to continue it, or choose a different "
            f"folder."
        )
    old = read_config(out)
    for name in NAMES:
        before, now = getattr(old, name), getattr(config, name)
        if name not in CHANGEABLE and before != now:
            raise InputError(
                f"{out} was trained with {name}={before!r}, got {now!r}: resume it with the same "
                f"value, or choose a different folder."
            )


def newest_checkpoint(run: Path, world: World, message: Callable[[str], None]) -> Checkpoint | None:
    """Return the checkpoint to continue from; report damaged newer ones and set them aside."""

    def choose() -> tuple[Checkpoint | None, list[str]]:
        good, problems = checkpoint.newest_good(run)
        checkpoint.set_aside(run, good.state.step if good else -1)
        return good, problems

    good, problems = world.first(choose)
    instead = f"Continuing from {good.folder}." if good else "Starting from the beginning."
    for problem in problems:
        message(f"{problem} {instead}")
    return good


def _has_only_hidden_files(folder: Path) -> bool:
    """Return whether a folder is empty except for what a run killed at its start leaves."""
    return all(item.name.startswith(".") for item in folder.iterdir())
