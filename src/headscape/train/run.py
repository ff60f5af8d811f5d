"""A run is a folder; `train` fills it and `Run.open` reads it.

    RUN/config.toml        the whole configuration          (config_file.py)
        tokenizer.json     the tokenizer, so that the run needs nothing else to be read
        metrics.jsonl      a line for every step             (metrics.py)
        provenance.json    versions, machine, text           (provenance.py)
        checkpoints/       step-000400 and so on             (checkpoint.py)

Resuming goes on from the newest checkpoint whose checksums are right, and starts at the beginning
where there is none yet, so the same command with `resume` can be repeated until it is done.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io import atomic
from headscape.text.dataset import default_cache
from headscape.text.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.train.config import config_file
from headscape.train.config.train_config import TrainConfig
from headscape.train.data import anywhere, open_data
from headscape.train.distributed.parallel import spread
from headscape.train.distributed.world import World, joined, restarted
from headscape.train.loop import metrics
from headscape.train.loop.live_line import Teller
from headscape.train.loop.loop import Loop, progress_of
from headscape.train.loop.metrics import Line
from headscape.train.loop.optim import adamw
from headscape.train.loop.step import Learner
from headscape.train.storage import checkpoint, provenance
from headscape.train.storage.checkpoint import State

CONFIG = "config.toml"
TOKENIZER = "tokenizer.json"
FREE = {"batch", "checkpoint_every", "keep", "keep_every", "validate_every"} | {
    "validation_windows",
    "precision",
    "compile",
    "path",
    "distributed",
    "tensorboard",
    "preset",
}
"""What may differ when a run is resumed, because it does not change what is learned from what."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    folder: Path
    """The run."""
    finished: bool
    """False when a signal ended it early."""
    step: int
    """Updates made."""
    tokens: int
    """Tokens seen."""
    seconds: float
    """Time spent, over all resumptions."""
    loss: float
    """Training loss of the last step, in nats per token."""
    validation_loss: float | None
    """The last one, in nats per token."""
    message: str
    """A sentence for the user: where it is, or how to resume."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with what is needed to use it."""

    folder: Path
    """The run."""
    config: TrainConfig
    """What it was made with."""
    step: int
    """Updates behind this model."""
    checkpoint: Path
    """The folder the weights came from."""
    model: GPT2
    """On the CPU."""
    tokenizer: Tokenizer
    """The model's."""

    @classmethod
    def open(cls, folder: Path | str, step: int | None = None) -> "Run":
        """The newest checkpoint that is whole, with a warning if it is not the newest of all.

        Or the one of a step.
        """
        folder = Path(folder)
        config = read_config(folder)
        there = dict(checkpoint.steps(folder))
        if not there:
            raise InputError(
                f"{folder} has no checkpoint yet: wait for its first one or train it further."
            )
        if step is not None and step not in there:
            known = ", ".join(map(str, there))
            raise InputError(f"{folder} has no checkpoint of step {step}: there are {known}.")
        if step is not None:
            chosen = there[step]
        else:
            good, complaints = checkpoint.newest_good(folder)
            if good is None:
                raise InputError(f"{folder} has no good checkpoint: {' '.join(complaints)}")
            for complaint in complaints:
                warnings.warn(f"{complaint} Reading {good} instead.", stacklevel=2)
            chosen = good
        state = checkpoint.verify(chosen)
        return cls(
            folder=folder,
            config=config,
            step=state.step,
            checkpoint=chosen,
            model=checkpoint.load_model(chosen).eval(),
            tokenizer=load_tokenizer(weights.read_json(folder / TOKENIZER)),
        )

    @property
    def recipe(self) -> str:
        """SHA-256 of all that the model was made with but its seed: runs that share it compare."""
        fields = set(config_file.NAMES) - FREE - {"seed"} | {"precision"}
        made = {name: getattr(self.config, name) for name in fields}
        # A text may lie elsewhere on another machine.
        made["corpus"] = provenance.text_of(self.folder) or made["corpus"]
        if self.config.steps is not None:
            made["step"] = self.step
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()

    def metrics(self) -> list[Line]:
        """The line of every step."""
        return metrics.read(self.folder)


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} is not a run: it has no {CONFIG}.")
    return config_file.read(folder / CONFIG)


def train(
    config: TrainConfig | None,
    *,
    out: Path | str,
    resume: bool = False,
    cache: Path | str | None = None,
    quiet: bool = False,
) -> RunResult:
    """Train into the folder `out`, or go on with the run that is there.

    Without a configuration, a resumed run takes its own. Text becomes tokens in `cache` (see
    `default_cache`). Called in every process under torchrun, which after a failure starts them
    again to resume.
    """
    out = Path(out)
    store_in = default_cache() if cache is None else Path(cache)
    with joined() as world:
        # In a function of its own, so that nothing that talks to the others outlives the group.
        return _train(config, out, store_in, world, resume=resume or restarted(), quiet=quiet)


def _train(
    config: TrainConfig | None, out: Path, cache: Path, world: World, *, resume: bool, quiet: bool
) -> RunResult:
    config = world.first(lambda: _settle(config, out, resume=resume))
    torch.set_float32_matmul_precision("high" if world.device.type == "cuda" else "highest")
    with Teller(config, speaks=world.leads and not quiet) as teller:
        loop = _prepare(config, out, cache, world, teller)
        taken = loop.learner.attention_path(loop.data.rows(config, 0, config.length, world))
        # Only now: what cannot be opened, built or computed leaves no folder behind.
        world.first(lambda: _begin(loop, config))
        state = _position(loop, config)
        world.first(lambda: provenance.record(out, config, loop.data, world, taken, state.step))
        finished = True
        if progress_of(config, state) < 1:
            state, finished = loop.go(state)
        result = _result(out, state, finished=finished)
        teller.say(result.message)
        return result


def _settle(config: TrainConfig | None, out: Path, *, resume: bool) -> TrainConfig:
    """The run's configuration, once it is clear that `out` can be this run's folder."""
    there = (out / CONFIG).is_file()
    if not there and out.exists() and not (out.is_dir() and _is_clean(out)):
        raise InputError(f"{out} is there and is not a run: choose a folder of its own for a run.")
    if there and not resume:
        raise InputError(f"{out} already holds a run: add --resume, or choose another folder.")
    if config is None:
        return read_config(out)
    config = anywhere(config)
    if there:
        old = read_config(out)
        for name in config_file.NAMES:
            before, now = getattr(old, name), getattr(config, name)
            if name not in FREE and before != now:
                raise InputError(
                    f"{out} was trained with {name}={before!r}, not {now!r}: resume it as it was, "
                    f"or choose another folder."
                )
    return config


def _is_clean(folder: Path) -> bool:
    """Whether a folder holds nothing but what a run that was killed at its start leaves."""
    return all(item.name.startswith(".") for item in folder.iterdir())


def _prepare(config: TrainConfig, out: Path, cache: Path, world: World, teller: Teller) -> Loop:
    data = open_data(config, world, cache)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = GPT2(config.model(data.tokenizer.vocabulary))
    module = spread(model, config.distributed, world)
    if config.compile:
        module.compile()
    learner = Learner(config=config, world=world, model=model, module=module)
    return Loop(
        run=out,
        data=data,
        learner=learner,
        optimiser=adamw(model, config),
        teller=teller,
    )


def _begin(loop: Loop, config: TrainConfig) -> None:
    """Write down what the run is; a resumed one must still be the same."""
    out, data = loop.run, loop.data
    if (what := provenance.changed(out, data)) is not None:
        raise InputError(
            f"{out} was trained with another {what} than {config.corpus} now gives: bring it "
            f"back to resume, or choose another folder."
        )
    config_file.write(out / CONFIG, config)
    atomic.write_text(out / TOKENIZER, json.dumps(data.tokenizer.describe()) + "\n")


def _position(loop: Loop, config: TrainConfig) -> State:
    """Load the newest good checkpoint, if there is one; say what was wrong with newer ones."""
    world = loop.learner.world

    def choose() -> tuple[Path | None, list[str]]:
        good, complaints = checkpoint.newest_good(loop.run)
        checkpoint.set_aside(loop.run, checkpoint.verify(good).step if good else -1)
        return good, complaints

    good, complaints = world.first(choose)
    for complaint in complaints:
        instead = f"going on from {good}" if good else "starting from the beginning"
        loop.teller.say(f"{complaint} {instead[0].upper()}{instead[1:]}.")
    if good is None:
        return State()
    state = checkpoint.load(good, loop.learner.model, loop.optimiser)
    of = f" of {config.steps}" if config.steps else ""
    loop.teller.say(f"resuming {loop.run} at step {state.step}{of}")
    return state


def _result(out: Path, state: State, *, finished: bool) -> RunResult:
    lines = [line for line in metrics.read(out) if line["step"] <= state.step]
    validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
    newest = checkpoint.steps(out)[-1][1]
    if finished:
        message = f"finished after {state.step} steps: {newest}"
    else:
        message = (
            f"stopped at step {state.step}, everything is saved; go on with: "
            f"headscape train --resume --out {out}"
        )
    return RunResult(
        folder=out,
        finished=finished,
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        loss=lines[-1]["loss"],
        validation_loss=validation[-1] if validation else None,
        message=message,
    )
