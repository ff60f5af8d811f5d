"""A training process to be started, killed and started again: OUT CACHE CONFIG [resume]."""

import os
import signal
import sys
from pathlib import Path

import torch

from headscape.errors import InputError
from headscape.training import train
from headscape.training.config import read_toml
from headscape.training.step import Learner

torch.set_num_threads(1)


def die_once(at: int) -> None:
    """The second process is lost in the middle of a step, the first time it gets there."""
    plain, calls = Learner.gradient, 0

    def gradient(self: Learner, windows: torch.Tensor) -> float:
        nonlocal calls
        calls += 1
        if calls == at and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, windows)

    Learner.gradient = gradient  # type: ignore[method-assign]


def main() -> int:
    if "HEADSCAPE_TEST_DIE" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        die_once(int(os.environ["HEADSCAPE_TEST_DIE"]))
    out, cache, config, *flags = sys.argv[1:]
    try:
        result = train(read_toml(Path(config)), out=out, cache=cache, resume="resume" in flags)
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"{error}\n")
        return 2
    return 0 if result.finished else 130


if __name__ == "__main__":
    sys.exit(main())
