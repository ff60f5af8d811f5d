"""Training: a configuration and a text become a run folder with a trained model."""

from headscape.training.config import PRESETS, TrainConfig, preset
from headscape.training.run import Run, read_config
from headscape.training.trainer import RunResult, train

__all__ = ["PRESETS", "Run", "RunResult", "TrainConfig", "preset", "read_config", "train"]
