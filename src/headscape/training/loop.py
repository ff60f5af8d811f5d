"""The training loop, from the present state of a run to its end.

Window length, learning rate and windows of a step are functions of the configuration and the step
number (of the time, in a run limited by minutes). On a CPU sums are computed in a fixed order, so a
resumed run ends with the same bits.

The order at the end of a step is update, validation, metrics, checkpoint, so the metrics have every
step that a checkpoint has.

Progress goes to stderr: one live line in a terminal, else one line per validation loss.

    cable  step 400/1200  loss 3.21  validation 3.30  12.1k tokens/s  1:06 left

A step whose loss or gradient is not finite is run again with a hook on every module. The first
parameter that is not finite is named, or else the first module whose output is not finite. If the
whole forward pass is finite, the parameter nearest to the output whose gradient is not finite is
named.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.training import checkpoint
from headscape.training.checkpoint import State
from headscape.training.config import TrainConfig
from headscape.training.metrics import Events, Line, Metrics
from headscape.training.objective import Data
from headscape.training.optim import Optimizer, lr_at
from headscape.training.parallel import clip_gradients, is_dtensor
from headscape.training.provenance import made_with
from headscape.training.step import Learner


class NonFiniteError(InputError):
    """The loss or gradient of a step is not finite; no update was made from it."""


def is_bad(loss: float, norm: float = 0.0) -> bool:
    """Return whether a loss or gradient norm is not finite."""
    return not (math.isfinite(loss) and math.isfinite(norm))


@torch.no_grad()
def locate(model: nn.Module, tokens: Int[Tensor, "b t"]) -> str:
    """Return what first became non-finite in the forward pass; empty if nothing did."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the parameter {name}"
    with _first_non_finite(model) as modules:
        model(tokens)
    return f"the output of {modules[0]}" if modules else ""


def locate_gradient(model: nn.Module) -> str:
    """Return the parameter nearest to the output whose gradient is not finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"the gradient of {name}"
    return "the gradient's norm"


@contextmanager
def _first_non_finite(model: nn.Module) -> Iterator[list[str]]:
    """Collect the name of the first module whose output is not finite."""
    modules: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def hook(_: nn.Module, inputs: Sequence[object], got: object, name: str = name) -> None:
            if modules:
                return
            if any(isinstance(value, Tensor) and not _finite(value) for value in inputs):
                # It arose between modules, in the parent of this one.
                modules.append(name.rpartition(".")[0] or "the model")
            elif isinstance(got, Tensor) and not _finite(got):
                modules.append(name or "the model")

        handles.append(module.register_forward_hook(hook))
    try:
        yield modules
    finally:
        for handle in handles:
            handle.remove()


def _finite(value: Tensor) -> bool:
    local = value.to_local() if is_dtensor(value) else value
    return bool(local.isfinite().all())


Report = Callable[[Line, float], None]
"""Called after a step with its metrics and the share of the run that is done."""


class LiveLine:
    """Writes progress and messages to stderr, from one process only."""

    def __init__(self, config: TrainConfig, *, enabled: bool, report: Report | None = None) -> None:
        self._report = report
        self._config = config
        self._enabled = enabled
        self._console = Console(
            stderr=True, quiet=not enabled, highlight=False, soft_wrap=True, markup=False
        )
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._validation = ""

    def __enter__(self) -> "LiveLine":
        if self._enabled and self._console.is_terminal:
            columns = (TextColumn(self._config.model.encoding), BarColumn(bar_width=24))
            text = TextColumn("{task.description}")
            self._bar = Progress(*columns, text, console=self._console)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        return self

    def step(self, line: Line, progress: float, speed: float, left: float) -> None:
        """Show a step: fraction of the run done, tokens per second, seconds left."""
        if self._report is not None:
            self._report(line, progress)
        if "validation_loss" in line:
            self._validation = f"  validation {line['validation_loss']:.3f}"
        of = f"/{self._config.steps}" if self._config.steps else ""
        text = (
            f"step {line['step']:.0f}{of}  loss {line['loss']:.3f}{self._validation}  "
            f"{_short(speed)} tokens/s  {_clock(left)} left"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=progress, description=text)
        elif "validation_loss" in line:
            self._console.print(f"{self._config.model.encoding}  {text}")

    def message(self, text: str) -> None:
        """Show a sentence."""
        self._console.print(text)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _short(number: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Records whether a signal arrived inside the `with` block.

    Ctrl-C and SIGTERM are requests to finish the step, write a checkpoint and end the run. A second
    Ctrl-C stops at once. Python delivers signals to the main thread only; in other threads nothing
    is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A run that is ready to train."""

    run: Path
    """Folder of the run."""
    data: Data
    learner: Learner
    optimizer: Optimizer
    live: LiveLine
    """Progress output."""

    def train(self, state: State) -> tuple[State, bool]:
        """Train to the end or until a signal; return the last state and whether it is the end."""
        config, world = self.learner.config, self.learner.world
        started, first = time.monotonic() - state.seconds, state
        sinks: list[Metrics | Events] = []
        try:
            self._open(sinks, state.step)
            with Interrupt() as interrupt, fixed_order(world.device):
                while progress_of(config, state) < 1:
                    line, stop = self._step(state, started, interrupt)
                    state = State(
                        step=int(line["step"]), tokens=int(line["tokens"]), seconds=line["seconds"]
                    )
                    progress = progress_of(config, state)
                    ended = progress >= 1
                    if ended or _due(state.step, config.validate_every):
                        line["validation_loss"] = self.learner.validation(self.data)
                    self._append(sinks, line)
                    spent = state.seconds - first.seconds
                    share = progress - progress_of(config, first)
                    speed = (state.tokens - first.tokens) / max(spent, 1e-9)
                    self.live.step(line, progress, speed, spent / share * (1 - progress))
                    if ended or stop or _due(state.step, config.checkpoint_every):
                        self._save(state, sinks)
                    if stop and not ended:
                        return state, False
        finally:
            for sink in sinks:
                sink.close()
        return state, True

    def _step(self, state: State, started: float, interrupt: Interrupt) -> tuple[Line, bool]:
        learner, config, world = self.learner, self.learner.config, self.learner.world
        progress = progress_of(config, state)
        length = config.length_at(progress)
        lr = lr_at(config, state.step, progress)
        windows = self.data.rows(config, state.step, length, world)
        self.optimizer.zero_grad()
        share = learner.gradient(windows)
        # All processes use the clock of the first one, so that all end at the same step.
        seconds = time.monotonic() - started if world.is_first else 0.0
        loss, stops, seconds = world.sums(share, float(interrupt.requested), seconds)
        norm = 0.0
        if not is_bad(loss):
            norm = clip_gradients(learner.model.parameters(), config.grad_clip)
        if is_bad(loss, norm):
            raise self._not_finite(state.step, length, windows, loss)
        self.optimizer.step(lr)
        line: Line = {
            "step": state.step + 1,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "length": length,
            "tokens": state.tokens + config.tokens_per_step,
            "seconds": seconds,
        }
        return line, stops > 0

    def _open(self, sinks: list[Metrics | Events], after: int) -> None:
        def opened() -> None:
            sinks.append(Metrics(self.run, after))
            if self.learner.config.tensorboard:
                sinks.append(Events(self.run, after))

        self.learner.world.first(opened)

    def _append(self, sinks: list[Metrics | Events], line: Line) -> None:
        def append() -> None:
            for sink in sinks:
                sink.append(line)

        self.learner.world.first(append)

    def _save(self, state: State, sinks: list[Metrics | Events]) -> None:
        learner, config = self.learner, self.learner.config
        for sink in sinks:
            if isinstance(sink, Metrics):
                sink.flush()
        checkpoint.write(
            self.run,
            learner.model,
            self.optimizer,
            state,
            learner.world,
            made_with(config, self.data),
        )
        learner.world.first(lambda: checkpoint.prune(self.run, config.keep_last, config.keep_every))

    def _not_finite(
        self, step: int, length: int, windows: torch.Tensor, loss: float
    ) -> NonFiniteError:
        learner, world = self.learner, self.learner.world
        model = learner.model
        reports = [
            locate(model, part[:, :-1].to(world.device))
            for part in torch.split(windows, learner.config.batch_size)
        ]
        where = next((name for name in reports if name), "") or locate_gradient(model)
        places = world.gather(where)
        where = next((name for name in places if not name.startswith("the gradient")), places[0])
        count = learner.config.tokens_per_step // length
        starts = self.data.batches.starts(step, count, length).tolist()
        shown = ", ".join(map(str, starts[:8])) + (" ..." if count > 8 else "")
        advice = _advice(self.run)
        problem = "a gradient that is not finite" if math.isfinite(loss) else f"a loss of {loss}"
        return NonFiniteError(
            f"training stopped at step {step + 1} with {problem}: it began in {where}, on "
            f"the {count} windows of {length} tokens that start at {shown} of the training data; "
            f"{advice}."
        )


def progress_of(config: TrainConfig, state: State) -> float:
    """Return the fraction of the run that is done, by steps or by time."""
    if config.steps is not None:
        return state.step / config.steps
    assert config.minutes is not None
    return state.seconds / (60 * config.minutes)


def _advice(run: Path) -> str:
    """Return what a run that stopped can be continued from."""
    try:
        good, _ = checkpoint.newest_good(run)
    except InputError as error:
        return str(error).removesuffix(".")
    if good is not None:
        return f"the last good checkpoint is {good.folder}"
    return "there is no checkpoint, so the same folder can be used again with a lower lr"


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextmanager
def fixed_order(device: torch.device) -> Iterator[None]:
    """Compute sums in a fixed order on a CPU, where some depend on the timing of threads."""
    before = torch.are_deterministic_algorithms_enabled()
    # torch declares it as a module, but it is an object with a property.
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(mode=True)
        settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
        settings.fill_uninitialized_memory = fills
