"""The numbers of metrics.jsonl as TensorBoard events.

Optional: `pip install headscape[tensorboard]`. A resumed run adds events from its step on.
"""

from pathlib import Path

from headscape.errors import InputError
from headscape.training.loop.metrics import Line

FOLDER = "tensorboard"


def require_tensorboard() -> None:
    """Refuse to go on without the package, before anything is written."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(
            "tensorboard is not installed: pip install 'headscape[tensorboard]', or leave out "
            "--tensorboard."
        ) from error


class Events:
    """An open events file in a run's folder."""

    def __init__(self, run: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / FOLDER), purge_step=after + 1)

    def append(self, line: Line) -> None:
        """Add the numbers of a step."""
        for name in ("loss", "validation_loss", "lr", "grad_norm"):
            if name in line:
                self._writer.add_scalar(name, line[name], int(line["step"]))

    def close(self) -> None:
        """Write all pending events."""
        self._writer.close()
