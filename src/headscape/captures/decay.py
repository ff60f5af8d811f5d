"""How fast layers without a softmax forget: the positional kernel of each of their heads."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from headscape.captures.sequences import Text, choose_tokens
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers.linear_decay import linear_decay
from headscape.models.transformers.open_published import is_published, wrap_tokenizer
from headscape.models.transformers.published_model import PublishedModel

DISTANCES: Final = (1, 4, 16, 64, 256, 1024)
"""Distances of a table's columns, as far as the text reaches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerDecay:
    """How every head of one layer without a softmax forgets on one text."""

    block: int
    """Number of the block in the model, from 0; blocks with attention count too."""
    kind: str
    """Class of the layer, such as Qwen3NextGatedDeltaNet."""
    kernel: Float64[np.ndarray, "h t"]
    """What is left of a token after 0, 1, 2 ... tokens: the mean over queries and channels."""
    log_decay: Float64[np.ndarray, "h t c"]
    """Log of the decay at every token; c is 1 where a head has one decay for all channels."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Decays:
    """The decay of every layer of a model that has one, on one text."""

    name: str
    tokens: Int64[np.ndarray, " t"]
    layers: tuple[LayerDecay, ...]
    """In the model's order."""

    def kernel(self, block: int, head: int | None = None) -> np.ndarray:
        """Return the kernel of a block: of all heads [h t], or of one [t].

        Args:
            block: Counted from 0, blocks with attention included.
            head: Counted from 0; None for all heads.
        """
        layer = next((each for each in self.layers if each.block == block), None)
        if layer is None:
            known = [each.block for each in self.layers]
            raise InputError(f"block {block} has no decay that was read: there are {known}.")
        heads = len(layer.kernel)
        if head is not None and not -heads <= head < heads:
            raise InputError(f"there is no head {head}: block {block} has heads 0 to {heads - 1}.")
        return layer.kernel if head is None else layer.kernel[head]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per head, counted from 0: its half-life and what is left at distances.

        The half-life is the first distance at which at most half is left, None if there is none.
        """
        rows = []
        for layer in self.layers:
            for head, kernel in enumerate(layer.kernel):
                below = np.flatnonzero(kernel <= 0.5)
                row: dict[str, Any] = {"block": layer.block, "head": head, "kind": layer.kind}
                row["half_life"] = int(below[0]) if len(below) else None
                row |= {f"left_{at}": float(kernel[at]) for at in DISTANCES if at < len(kernel)}
                rows.append(row)
        return rows

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame."""
        from headscape.measures.record_table import to_frame

        return to_frame(self.rows())

    def __repr__(self) -> str:
        blocks = ", ".join(str(each.block) for each in self.layers)
        return f"<decay of {self.name}: {len(self.tokens)} tokens, blocks {blocks} (from 0)>"


def decay(model: Any, text: Text, *, tokenizer: object = None) -> Decays:
    """Return how fast each head of the layers without a softmax forgets on one text.

    Mamba2, Gated DeltaNet, KDA, lightning attention and RWKV-4 are read, from the call that a model
    makes to its own recurrence. A delta rule also erases, which depends on content and is not part
    of it.

    Args:
        model: A transformers model, which may have no attention at all, or what `load` takes or
            returned.
        text: A text or token numbers.
        tokenizer: For a text, if the model has none: one of transformers.

    Example:
        >>> import headscape as hs, transformers
        >>> sizes = {"hidden_size": 32, "num_heads": 4, "head_dim": 16, "num_hidden_layers": 2}
        >>> config = transformers.Mamba2Config(vocab_size=99, n_groups=1, **sizes)
        >>> found = hs.decay(transformers.Mamba2ForCausalLM(config), list(range(3, 40)))
        >>> found.kernel(block=1).shape  # what is left after 0, 1, 2 ... tokens
        (4, 37)
    """
    theirs: Any = model
    if not is_published(model):
        opened = load(model, tokenizer=tokenizer)
        if not isinstance(opened, PublishedModel):
            raise InputError(f"{opened.spec.name} has no layer without a softmax.")
        ids, theirs, name = choose_tokens(opened, text).tokens, opened.model, opened.spec.name
    else:
        # A model without attention cannot be loaded, and its decay can be read all the same.
        name = type(model).__name__
        if isinstance(text, str):
            if not is_published(tokenizer):
                raise InputError(f"{name} has no tokenizer: give one of transformers, or tokens.")
            text = wrap_tokenizer(tokenizer).encode(text)
        ids = np.asarray(text, dtype=np.int64).reshape(-1)
    if not len(ids):
        raise InputError("a text needs at least one token, got none.")
    stream = getattr(model, "stream", None)
    with ExitStack() as stack:
        if stream is not None:
            stack.enter_context(stream.reading())
        layers_read = linear_decay(theirs, torch.from_numpy(ids)[None])
    layers = tuple(
        LayerDecay(
            block=each.block,
            kind=each.kind,
            kernel=each.kernel().cpu().numpy(),
            log_decay=each.log_decay.cpu().numpy(),
        )
        for each in layers_read
    )
    return Decays(name=name, tokens=ids, layers=layers)
