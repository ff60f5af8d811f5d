"""Tells transformers' Auto classes about exported models."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from headscape.huggingface.exported_config import HeadscapeConfig
from headscape.huggingface.exported_model import HeadscapeForCausalLM, HeadscapeModel


def register_exported() -> None:
    """Let AutoConfig, AutoModel and AutoModelForCausalLM open exported models."""
    AutoConfig.register(HeadscapeConfig.model_type, HeadscapeConfig, exist_ok=True)
    AutoModel.register(HeadscapeConfig, HeadscapeModel, exist_ok=True)
    AutoModelForCausalLM.register(HeadscapeConfig, HeadscapeForCausalLM, exist_ok=True)
