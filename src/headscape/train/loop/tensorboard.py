"""The numbers of metrics.jsonl as TensorBoard events, for those who watch runs there.

Optional: `pip install headscape[tensorboard]`. A resumed run adds events from its step on.
"""

from pathlib import Path

from headscape.errors import InputError
from headscape.train.loop.metrics import Line

FOLDER = "tensorboard"


class Events:
    """An open events file in a run's folder."""

    def __init__(self, run: Path, after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(
                "tensorboard is not installed: pip install 'headscape[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(run / FOLDER), purge_step=after + 1)

    def append(self, line: Line) -> None:
        """Add a step's numbers."""
        for name in ("loss", "validation_loss", "rate", "norm"):
            if name in line:
                self._writer.add_scalar(name, line[name], int(line["step"]))

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()
