"""How much the loss changes when one head loses its positional part.

    removed   S_ij becomes content_ij, the scaled q.k before rotation and bias
    kernel    S_ij becomes content_ij + beta(i - j), the mean positional part at each distance

Everything else stays: the mask, the values, a learned sink, the other heads. A layer without a
positional part has effects of exactly 0, and so has `kernel` where the bias is a function of the
distance already. Position that is added to the embeddings is in q and k, so it is not removed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headscape.call.bias import Toeplitz
from headscape.call.definition import AttentionCall
from headscape.errors import InputError
from headscape.kernels.attend import run
from headscape.measures.sums import Progress
from headscape.models.model import Edit, Editable, LayerSpec, Model

VARIANTS: Final = ("removed", "kernel")


def causal_effects(
    model: Model,
    windows: Int64[np.ndarray, "b t_plus_1"],
    kernels: Sequence[Float[np.ndarray, "h n"]],
    progress: Progress = lambda _: None,
) -> dict[str, Float[np.ndarray, "layers b h"]]:
    """Return the change of each window's mean loss in nats, by variant, layer and head.

    `kernels` has the mean positional part of each layer at distances 1 - T to T - 1.
    """
    if not isinstance(model, Editable):
        raise InputError(f"{model.spec.name} cannot run with a head changed.")
    tokens = torch.from_numpy(windows)
    own = model.losses(tokens, 0).mean(dim=1)
    heads = model.spec.heads
    changes = {name: np.zeros((len(kernels), len(windows), heads)) for name in VARIANTS}
    for layer, kernel in enumerate(kernels):
        variants = _variants(model.spec.layers[layer], kernel)
        edits = [
            _edit(head, kernel[head] if name == "kernel" else None)
            for name in variants
            for head in range(heads)
        ]
        asked = [(name, head) for name in variants for head in range(heads)]
        losses = model.edited_losses(tokens, 0, layer, edits)
        for (name, head), loss in zip(asked, losses, strict=True):
            changes[name][layer, :, head] = (loss.mean(dim=1) - own).numpy()
            progress(1)
        progress((len(VARIANTS) - len(variants)) * heads)
    return changes


def _variants(layer: LayerSpec, kernel: np.ndarray) -> tuple[str, ...]:
    """Return the variants that can change anything."""
    if not np.nan_to_num(kernel).any():
        return ()
    return ("removed",) if layer.claims.get("toeplitz") else VARIANTS


def _edit(head: int, kernel: Float[np.ndarray, " n"] | None) -> Edit:
    """Return what replaces one head's output."""

    def edit(inputs: AttentionCall, own: Tensor) -> Tensor:
        changed = own.clone()
        changed[:, head] = run(_one_head(inputs, head, kernel))[:, 0].to(own.dtype)
        return changed

    return edit


def _one_head(
    inputs: AttentionCall, head: int, kernel: Float[np.ndarray, " n"] | None
) -> AttentionCall:
    """Return one head's attention with content and a table of distances alone."""
    q, k = inputs.unrotated or (inputs.q, inputs.k)
    grouped = head * k.shape[1] // q.shape[1]
    bias = None
    if kernel is not None:
        table = torch.from_numpy(np.nan_to_num(kernel)).to(q)[None]
        bias = Toeplitz(table, inputs.k.shape[2] - 1)
    return replace(
        inputs,
        q=q[:, head : head + 1].contiguous(),
        k=k[:, grouped : grouped + 1].contiguous(),
        v=inputs.v[:, grouped : grouped + 1].contiguous(),
        mixing=None,
        weighting=None,
        turns=None,
        bias=bias,
        unrotated=None,
        transition=None,
        temperature=None,
        softcap=None,
        sink=None if inputs.sink is None else inputs.sink[head : head + 1],
    )
