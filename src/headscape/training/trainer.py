"""`train`: from a preset or configuration to a finished run.

Resuming continues from the newest undamaged checkpoint, or starts at the beginning if there is
none, so the same command with `resume` can be repeated until the run is done. It stops at a
checkpoint that cannot be read, which may be good. A run without any checkpoint, for example because
it diverged early, can be started over in the same folder with any configuration.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headscape.data.dataset import default_cache
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.io.files import reporting, require_utf8, write_text
from headscape.io.folder_lock import FolderLock
from headscape.training import checkpoint, metrics, provenance
from headscape.training.checkpoint import Checkpoint, State, load
from headscape.training.config import (
    TrainConfig,
    allocating,
    changed,
    flat,
    preset,
    read_toml,
    write_toml,
)
from headscape.training.loop import LiveLine, Loop, Report, progress_of
from headscape.training.metrics import require_tensorboard
from headscape.training.objective import Data, open_data, with_absolute_corpus
from headscape.training.optim import Optimizer
from headscape.training.parallel import parallelize
from headscape.training.run import (
    CHANGEABLE,
    CONFIG,
    TOKENIZER,
    check_config,
    read_config,
    read_tokenizer,
)
from headscape.training.step import Learner
from headscape.training.world import World, joined, restarted


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """How a run ended."""

    folder: Path
    """The run; `Run.open` reads it."""
    finished: bool
    """False if a signal ended it early."""
    step: int
    """Updates made."""
    tokens: int
    """Tokens seen."""
    seconds: float
    """Training time, over all resumptions."""
    loss: float
    """Training loss of the last step, in nats per token."""
    validation_loss: float | None
    """Last validation loss, in nats per token."""
    message: str
    """Where the result is, or how to resume."""

    def __repr__(self) -> str:
        return (
            f"RunResult({str(self.folder)!r}, finished={self.finished}, step={self.step}, "
            f"loss={self.loss:.4g}, validation_loss={self.validation_loss})"
        )


def train(
    config: TrainConfig | Path | str | None = None,
    *,
    out: Path | str,
    resume: bool = False,
    cache: Path | str | None = None,
    quiet: bool = False,
    report: Report | None = None,
    **settings: Any,
) -> RunResult:
    """Train a model into the folder `out` and return how the run ended.

    Under torchrun every process calls this; processes restarted after a failure resume.

    Args:
        config: The name of a preset, a TrainConfig, or the path of a config.toml. By default the
            preset nano, or when resuming the run's own configuration.
        out: The folder of the run.
        resume: Continue a run in `out` from its newest checkpoint. Where there is no run, one
            starts only if `config` is given.
        cache: Folder for the tokens of texts. By default `default_cache()`.
        quiet: Write no progress to stderr.
        report: Called after every step with its metrics and the share of the run that is done.
        settings: Fields of TrainConfig or of its ModelConfig to change, such as encoding="cable",
            layers=3, corpus="book.txt", steps=400, lr=1e-3.

    Example:
        >>> import headscape as hs
        >>> from pathlib import Path
        >>> _ = Path("book.txt").write_text("It was the best of times. " * 200)
        >>> result = hs.train(
        ...     "nano", encoding="cable", corpus="book.txt", tokenizer="bytes", context_length=32,
        ...     batch_size=2, steps=2, out="runs/cable", quiet=True,
        ... )
        >>> result.finished, result.step
        (True, 2)
    """
    if not isinstance(out, Path | str):
        raise InputError(f"out must be the path of a folder, got {out!r}.")
    out = Path(out)
    cache = default_cache() if cache is None else Path(cache)
    with joined() as world, FolderLock(out) as lock:
        if resume and config is None:
            world.first(lambda: require_run(out))
        resume = resume or restarted()
        chosen = world.first(lambda: requested_config(config, settings, out, resume=resume))
        # In a separate function, so that everything that holds the process group is freed before
        # the group is destroyed.
        return _train(chosen, out, cache, world, lock, resume=resume, quiet=quiet, report=report)


def requested_config(
    config: TrainConfig | Path | str | None, settings: dict[str, Any], out: Path, *, resume: bool
) -> TrainConfig:
    """Return the configuration that the arguments of `train` describe."""
    if config is None and resume and (out / CONFIG).is_file():
        config = read_config(out)
    if isinstance(config, Path) or (isinstance(config, str) and config.endswith(".toml")):
        return with_absolute_corpus(read_toml(Path(config), **settings))
    if isinstance(config, TrainConfig):
        return with_absolute_corpus(changed(config, **settings))
    if config is not None and not isinstance(config, str):
        raise InputError(
            f"config must be the name of a preset, a TrainConfig or the path of a config.toml, "
            f"got {config!r}."
        )
    return with_absolute_corpus(preset(config or "nano", **settings))


def _train(
    config: TrainConfig,
    out: Path,
    cache: Path,
    world: World,
    lock: FolderLock,
    *,
    resume: bool,
    quiet: bool,
    report: Report | None,
) -> RunResult:
    if config.tensorboard:
        require_tensorboard()
    world.first(lambda: check_folder(config, out, lock, resume=resume))
    torch.set_float32_matmul_precision("high" if world.device.type == "cuda" else "highest")
    with LiveLine(config, enabled=world.is_first and not quiet, report=report) as live:
        loop = _prepare(config, out, cache, world, live)
        windows = loop.data.rows(config, 0, config.context_length, world)
        attention = loop.learner.attention_path(windows)
        # Locked only now, so that a text, model or path that fails leaves no folder behind.
        world.first(lock.acquire)
        # Again, because a different process may have used the folder before it was locked.
        world.first(lambda: check_folder(config, out, lock, resume=resume))
        newest = newest_checkpoint(out, config, world, live.message)
        world.first(lambda: _write_run(loop, config))
        state = _starting_state(loop, config, newest)
        world.first(lambda: provenance.record(out, config, loop.data, world, attention, state.step))
        finished = True
        if progress_of(config, state) < 1:
            state, finished = loop.train(state)
        run = _result(out, state, finished=finished)
        live.message(run.message)
        return run


def _prepare(config: TrainConfig, out: Path, cache: Path, world: World, live: LiveLine) -> Loop:
    data = open_data(config, world, cache)
    with allocating("the model"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = GPT2(config.model_for(data.tokenizer.vocabulary))
    module = parallelize(model, config.distributed, world)
    if config.compile:
        module.compile()
    learner = Learner(config=config, world=world, model=model, module=module)
    return Loop(run=out, data=data, learner=learner, optimizer=Optimizer(model, config), live=live)


def _write_run(loop: Loop, config: TrainConfig) -> None:
    """Write configuration and tokenizer; refuse a text or tokenizer that has changed."""
    check_data(config, loop.run, loop.data)
    write_toml(loop.run / CONFIG, config)
    described = json.dumps(loop.data.tokenizer.describe())
    write_text(loop.run / TOKENIZER, described + "\n")


def _starting_state(loop: Loop, config: TrainConfig, newest: Checkpoint | None) -> State:
    """Load the checkpoint to continue from, if there is one."""
    if newest is None:
        return State()
    load(newest, loop.learner.model, loop.optimizer)
    of = f" of {config.steps}" if config.steps else ""
    loop.live.message(f"resuming {loop.run} at step {newest.state.step}{of}")
    return newest.state


def _result(out: Path, state: State, *, finished: bool) -> RunResult:
    lines = [line for line in metrics.read(out) if line["step"] <= state.step]
    validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
    if finished:
        message = f"finished after {state.step} steps: {checkpoint.steps(out)[-1][1]}"
    else:
        message = f"stopped at step {state.step} and saved a checkpoint; resume {out} to continue"
    return RunResult(
        folder=out,
        finished=finished,
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        loss=lines[-1].get("loss", math.nan) if lines else math.nan,
        validation_loss=validation[-1] if validation else None,
        message=message,
    )


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
