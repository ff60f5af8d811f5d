"""The attention of an exported model without a matrix of queries x keys.

With headscape installed, the package's own paths compute it (attention/attend.py). The file that
`--with-code` writes has no kernels: there `attend` is `attend_rows`, the dense definition on a
block of queries at a time, whose scores are computed again in backward.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscape.call.definition import AttentionCall, scores
from headscape.kernels.attend import run

ROWS = 128
"""Queries per block."""


def attend(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return attention by the fastest path that serves the call."""
    return run(inputs)


def attend_rows(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return attention by the definition, in memory of order length x ROWS."""

    def block(rows: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = scores(replace(inputs, q=q, k=k, v=v), rows).weights
        return found.to(v.dtype) @ v

    given, queries = (inputs.q, inputs.k, inputs.v), inputs.q.shape[2]
    if queries <= ROWS:
        return block(slice(0, queries), *given)
    parts = [slice(start, start + ROWS) for start in range(0, queries, ROWS)]
    if not torch.is_grad_enabled():
        return torch.cat([block(rows, *given) for rows in parts], dim=2)
    blocks = [
        checkpoint(block, rows, *given, use_reentrant=False, preserve_rng_state=False)
        for rows in parts
    ]
    return torch.cat(blocks, dim=2)
