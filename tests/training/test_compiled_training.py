"""`headscape train --compile` from the command line gives the losses of the plain command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headscape.training import metrics
from training.conftest import Make

MAIN = "from headscape.cli.app import main; main()"
WORDS = [
    "--tokenizer", "bytes", "--context-length", "32", "--batch-size", "2", "--steps", "3",
    "--encoding", "cable",
]  # fmt: skip


@pytest.mark.compiled
def test_a_compiled_training_has_the_losses_of_a_plain_one(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    losses = []
    for flags in ([], ["--compile"]):
        out = tmp_path / f"run{len(flags)}"
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "train", "--out", out, "--corpus", make().corpus, *WORDS,
             *flags],
            env={**os.environ, "HEADSCAPE_CACHE": str(cache)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        losses.append([line["loss"] for line in metrics.read(out)])
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
