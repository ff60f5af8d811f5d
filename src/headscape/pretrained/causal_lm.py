"""A causal language model that `transformers` loads, as a `Model`.

Logits come from the model's own forward pass, so whatever a family does to them is in the loss.
Only scored positions are asked for where the family allows it (`logits_to_keep`). `transformers` is
optional and imported in this folder alone. Weights are read from safetensors only.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.gpt2.generate import sample
from headscape.loaded import LoadedModel
from headscape.losses import digest, losses_in_blocks
from headscape.protocol import LayerSpec, Spec, Watch
from headscape.text.dataset import Dataset
from headscape.text.tokenize.published_tokenizer import PublishedTokenizer
from headscape.text.tokenize.tokenizer import Tokenizer

_TABLE = re.compile(r"(wpe|embed_positions|position_embeddings|positions_embed)$")


class CausalLM(LoadedModel):
    """A model of another architecture: it can be scored and continued."""

    def __init__(self, model: Any, name: str, tokenizer: Tokenizer | None) -> None:
        self.model = model.eval()
        self._name = name
        self._tokenizer = tokenizer
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @cached_property
    def spec(self) -> Spec:
        """Sizes from the config; how its position works is not recognised."""
        config = self.model.config
        unknown = LayerSpec(encoding="unknown", conventions={}, claims={})
        return Spec(
            name=self._name,
            layers=(unknown,) * config.num_hidden_layers,
            heads=config.num_attention_heads,
            head_dim=config.hidden_size // config.num_attention_heads,
            width=config.hidden_size,
            vocabulary=config.vocab_size,
            train_length=None,
            causal=True,
        )

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer."""
        return self._tokenizer

    @property
    def dataset(self) -> Dataset | None:
        """None: what it was trained on is not here."""
        return None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights."""
        return digest(self.model.config.to_json_string(), dict(self.model.state_dict()))

    def observe(self, tokens: Int[Tensor, "b t"], layers: Sequence[int], watch: Watch) -> None:
        """Refuse: the attention of this architecture cannot be read yet."""
        raise InputError(
            f"{self._name} is a {self.model.config.model_type!r} model, whose attention cannot be "
            f"read yet: capture takes training runs and GPT-2 weights."
        )

    @torch.inference_mode()
    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        windows = windows.to(self.model.device)
        target = windows[:, 1 + first :]
        keep = {"logits_to_keep": target.shape[1]} if self._keeps else {}
        logits = self.model(windows[:, :-1], use_cache=False, **keep).logits
        return losses_in_blocks(logits[:, -target.shape[1] :], target, lambda block: block).cpu()

    @torch.inference_mode()
    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """The likeliest next token after each token that `where` selects, in row order."""
        logits: Tensor = self.model(tokens.to(self.model.device), use_cache=False).logits
        return logits[where.to(logits.device)].argmax(dim=-1).cpu()

    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """New tokens, one at a time, with the model's own cache."""
        past: Any = None

        def next_logits(step: Int[Tensor, "b n"]) -> Float[Tensor, "b v"]:
            nonlocal past
            out = self.model(step.to(self.model.device), past_key_values=past, use_cache=True)
            past = out.past_key_values
            last: Tensor = out.logits[:, -1]
            return last

        return sample(next_logits, tokens, length=length, **sampling)

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


def open_causal_lm(folder: Path, tokenizer: Tokenizer | None = None) -> CausalLM:
    """Load a causal language model from a folder, in float32, from safetensors."""
    transformers = _transformers()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give the folder of a downloaded model.")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: give the folder of a downloaded model.")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder} is not a causal language model: {reason}") from error
    return CausalLM(model, folder.name, tokenizer or _open_tokenizer(transformers, folder))


def _open_tokenizer(transformers: Any, folder: Path) -> PublishedTokenizer | None:
    """The tokenizer beside a model; None where there is none."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return PublishedTokenizer(theirs.backend_tokenizer.to_str(), theirs.eos_token_id)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"the tokenizer in {folder} cannot be read: {reason}") from error


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "hf: models need transformers: pip install 'headscape[transformers]'."
        ) from error
    return transformers
