"""Whether a folder can be trained into, and where a resumed run continues.

Resuming continues from the newest undamaged checkpoint, or starts at the beginning if there is
none, so the same command with `resume` can be repeated until the run is done. It stops at a
checkpoint that cannot be read, which may be good. A run without any checkpoint, for example because
it diverged early, can be started over in the same folder with any configuration.
"""

from collections.abc import Callable
from pathlib import Path

from headscape.errors import InputError
from headscape.io.file_name import require_utf8
from headscape.io.folder_lock import FolderLock
from headscape.io.system_errors import reporting
from headscape.training import checkpoint, provenance
from headscape.training.checkpoint import Checkpoint
from headscape.training.config import TrainConfig, flat
from headscape.training.objective import Data
from headscape.training.run import (
    CHANGEABLE,
    CONFIG,
    TOKENIZER,
    check_config,
    read_config,
    read_tokenizer,
)
from headscape.training.world import World


def require_run(out: Path) -> None:
    """Refuse to resume where there is no run: the folder is probably misspelled."""
    with reporting("read", out):
        if (out / CONFIG).is_file():
            return
    raise InputError(
        f"{out} contains no run to resume: check the folder, or give a preset or a config to start "
        f"a new run there."
    )


def check_folder(config: TrainConfig, out: Path, lock: FolderLock, *, resume: bool) -> None:
    """Refuse a folder that is in use, is not a run, or contains a different run.

    Takes the lock if the folder contains a run.
    """
    require_utf8(out)
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
        raise InputError(f"{out} already contains a run: resume it, or choose a different folder.")
    old = read_config(out)
    wanted = flat(config)
    for name, before in flat(old).items():
        if name not in CHANGEABLE and before != wanted[name]:
            raise InputError(
                f"{out} was trained with {name}={before!r}, got {wanted[name]!r}: resume it with "
                f"the same value, or choose a different folder."
            )


def newest_checkpoint(
    run: Path, config: TrainConfig, world: World, message: Callable[[str], None]
) -> Checkpoint | None:
    """Return the checkpoint to continue from; report damaged newer ones and set them aside.

    Nothing is renamed if a checkpoint cannot be read or was trained with a different config.
    """

    def choose() -> tuple[Checkpoint | None, list[str]]:
        checkpoint.refuse_wrong_names(run)
        good, problems = checkpoint.newest_good(run)
        if good is not None:
            check_config(run, config, good)
        checkpoint.set_aside(run, good.state.step if good else -1)
        return good, problems

    good, problems = world.first(choose)
    instead = f"Continuing from {good.folder}." if good else "Starting from the beginning."
    for problem in problems:
        message(f"{problem} {instead}")
    return good


def check_data(config: TrainConfig, run: Path, data: Data) -> None:
    """Refuse a text or tokenizer that the checkpoints of a run were not trained with."""
    if not checkpoint.has_any(run):
        return
    if (run / TOKENIZER).exists():
        read_tokenizer(run)
    text = ("text", provenance.fingerprint_of(run, "corpus"), data.fingerprint)
    trained = provenance.fingerprint_of(run, "tokenizer")
    for name, recorded, now in (text, ("tokenizer", trained, data.tokenizer.fingerprint)):
        if recorded is not None and recorded != now:
            raise InputError(
                f"{run} was trained with a different {name} than {config.corpus} has now: restore "
                f"it to resume, or choose a different folder."
            )


def _has_only_hidden_files(folder: Path) -> bool:
    """Return whether a folder is empty except for what a run killed at its start leaves."""
    return all(item.name.startswith(".") for item in folder.iterdir())
