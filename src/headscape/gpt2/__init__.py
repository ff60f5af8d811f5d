"""The GPT-2 family, with any position encoding."""

from headscape.gpt2.cache import Cache
from headscape.gpt2.generate import generate
from headscape.gpt2.model import GPT2
from headscape.gpt2.model_config import PRESETS, ModelConfig, preset

__all__ = ["GPT2", "PRESETS", "Cache", "ModelConfig", "generate", "preset"]
