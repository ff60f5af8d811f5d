"""Training: a configuration and a text become a run folder with a trained model."""

from headscape.train.config.presets import PRESETS, preset
from headscape.train.config.train_config import TrainConfig
from headscape.train.run import Run, read_config
from headscape.train.trainer import RunResult, train

__all__ = ["PRESETS", "Run", "RunResult", "TrainConfig", "preset", "read_config", "train"]
