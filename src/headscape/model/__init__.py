"""The GPT-2 family, with any position encoding."""

from headscape.model.cache import Cache
from headscape.model.config import PRESETS, ModelConfig, preset
from headscape.model.generate import generate
from headscape.model.gpt2 import GPT2

__all__ = ["GPT2", "PRESETS", "Cache", "ModelConfig", "generate", "preset"]
