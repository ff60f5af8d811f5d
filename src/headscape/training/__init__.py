"""Training: a configuration and a text become a run folder with a trained model."""

from headscape.training.config.presets import PRESETS, preset
from headscape.training.config.train_config import TrainConfig
from headscape.training.run import Run, read_config
from headscape.training.trainer import RunResult, train

__all__ = ["PRESETS", "Run", "RunResult", "TrainConfig", "preset", "read_config", "train"]
