"""Hugging Face causal language models, from a folder, by the same protocols.

Logits come from the model's own forward pass, so whatever a family does to them is in the loss.
Only scored positions are asked for where the family allows it (`logits_to_keep`); where it does
not, those of whole windows. Either way they are held for all windows of a batch. `transformers` is
optional and imported here alone.
"""

import inspect
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.evaluate.scoring import digest, in_blocks
from headscape.evaluate.units import Units, byte_level

_TABLE = re.compile(r"(wpe|embed_positions|position_embeddings|positions_embed)$")


class HuggingFaceScorer:
    """A model that `transformers` loads."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights."""
        return digest(self.model.config.to_json_string(), dict(self.model.state_dict()))

    def cannot(self, length: int) -> str | None:
        """A learned table has an end; other positions are the model's to refuse."""
        rows = getattr(self.model.config, "max_position_embeddings", None)
        table = any(
            isinstance(module, nn.Embedding) and _TABLE.search(name)
            for name, module in self.model.named_modules()
        )
        if rows is not None and table and length > rows:
            return f"{length} tokens are more than the model's table of {rows} positions holds."
        return None

    def cost(self, length: int) -> float:
        """As for our own models, from the config's usual names."""
        config = self.model.config
        layer = 12 * config.hidden_size**2 + length * config.hidden_size
        return float(
            length * (config.num_hidden_layers * layer + config.vocab_size * config.hidden_size)
        )

    @torch.inference_mode()
    def losses(self, window: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        window = window.to(self.model.device)
        target = window[:, 1 + first :]
        keep = {"logits_to_keep": target.shape[1]} if self._keeps else {}
        logits = self.model(window[:, :-1], use_cache=False, **keep).logits
        return in_blocks(logits[:, -target.shape[1] :], target, lambda block: block).cpu()


class HuggingFaceTokenizer:
    """The tokenizer of a folder, for evaluation only: text to tokens, and their bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end_of_text: int | None = tokenizer.eos_token_id

    def encode(self, text: str) -> Int64[np.ndarray, " tokens"]:
        """Tokens of a text and nothing around it."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids, dtype=np.int64)

    def units(self) -> Units | None:
        """Bytes and words of each token, if the vocabulary is byte-level; None if not."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or '"ByteLevel"' not in backend.to_str():
            return None
        vocabulary = self._tokenizer.get_vocab()
        added = self._tokenizer.added_tokens_decoder
        # Spelled in characters, unlike the rest; special ones are no text.
        spelled = {
            number: b"" if token.special else token.content.encode()
            for number, token in added.items()
        }
        spelled |= dict.fromkeys(self._tokenizer.all_special_ids, b"")
        return byte_level(vocabulary, max(vocabulary.values()) + 1, spelled)


def open_model(folder: Path) -> HuggingFaceScorer:
    """Load a causal language model from a folder, in float32, from safetensors."""
    transformers = _transformers()
    _check(folder, "config.json")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder} holds no causal language model: {reason}") from error
    return HuggingFaceScorer(model)


def open_tokenizer(folder: Path) -> HuggingFaceTokenizer:
    """Load the tokenizer that lies beside a model."""
    transformers = _transformers()
    try:
        return HuggingFaceTokenizer(
            transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder} holds no tokenizer: put its tokenizer.json beside the model."
        ) from error


def _check(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise InputError(f"the folder {folder} is not there: give that of a downloaded model.")
    if not (folder / name).is_file():
        raise InputError(f"{folder} holds no {name}: give the folder of a downloaded model.")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "hf: models need transformers: pip install 'headscape[transformers]'."
        ) from error
    return transformers
