"""What a rotation makes of mean queries and keys, and which of its bands a head uses.

    closed form   scale mean(q) . R(d) mean(k)
    band use      mean |q_m| mean |k_m| over pairs m of dims, as shares
    massive       max over dims / mean over dims of the norm over tokens

The closed form is the kernel of queries and keys that are independent of each other.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import AttentionCall, shared
from headscape.call.positions import Turn


def closed_form(inputs: AttentionCall) -> Float[Tensor, "b h n"] | None:
    """Return the kernel of mean q and k at distances 1 - T to T - 1.

    None without a rotation of pairs of dims, or with one that tokens decide.
    """
    if inputs.unrotated is None or inputs.turns is None or inputs.bias is not None:
        return None
    if inputs.score_transform or inputs.mixing is not None or inputs.turns[0].by_tokens:
        return None
    q, k = (x.double().mean(dim=2, keepdim=True) for x in inputs.unrotated)
    k, tokens = shared(k, q.shape[1]), inputs.q.shape[2]
    moved_q = inputs.turns[0].apply(q.expand(-1, -1, tokens, -1))
    moved_k = inputs.turns[1].apply(k.expand(-1, -1, tokens, -1))
    behind = (moved_q * moved_k[:, :, :1]).sum(dim=-1)
    ahead = (moved_q[:, :, :1] * moved_k).sum(dim=-1)
    return inputs.scale * torch.cat([ahead[..., 1:].flip(-1), behind], dim=-1)


def band_use(inputs: AttentionCall) -> Float[Tensor, "b h m"] | None:
    """Return the share of each pair, dims that do not rotate last as one.

    None unless pairs turn by their position times a frequency.
    """
    turn = _by_frequency(inputs)
    if inputs.unrotated is None or turn is None:
        return None
    q, k = (_pairs(x.double(), turn).mean(dim=2) for x in inputs.unrotated)
    use = q * shared(k[:, :, None], q.shape[1])[:, :, 0]
    return use / use.sum(dim=-1, keepdim=True)


def wavelengths(inputs: AttentionCall) -> Float[Tensor, " m"] | None:
    """Return the tokens per turn of each band of `band_use`."""
    turn = _by_frequency(inputs)
    if inputs.unrotated is None or turn is None or turn.frequencies is None:
        return None
    speed = turn.frequencies
    tokens = torch.where(speed > 0, 2 * math.pi / speed.clamp(min=1e-300), math.inf)
    partial = 2 * len(speed) < inputs.unrotated[0].shape[-1]
    return torch.cat([tokens, tokens.new_tensor([math.inf])]) if partial else tokens


def _by_frequency(inputs: AttentionCall) -> Turn | None:
    """Return the turn of the queries if its angles are position times frequency."""
    turn = None if inputs.turns is None else inputs.turns[0]
    return None if turn is None or turn.frequencies is None else turn


def norm_ratio(inputs: AttentionCall) -> Float[Tensor, "b h"] | None:
    """Return the largest norm of a head dim over the mean norm; None where `band_use` is."""
    if inputs.unrotated is None or _by_frequency(inputs) is None:
        return None
    norms = [x.double().norm(dim=2) for x in inputs.unrotated]
    q, k = (each.amax(dim=-1) / each.mean(dim=-1) for each in norms)
    return torch.maximum(q, shared(k[..., None, None], q.shape[1])[..., 0, 0])


def _pairs(x: Float[Tensor, "b h t e"], turn: Turn) -> Float[Tensor, "b h t m"]:
    """Return the norm of each pair, and of all dims that do not rotate."""
    dims = 2 * turn.cos.shape[-1]
    turned, rest = x[..., :dims], x[..., dims:]
    if turn.pairing == "interleaved":
        norms = torch.hypot(turned[..., ::2], turned[..., 1::2])
    else:
        norms = torch.hypot(*turned.chunk(2, dim=-1))
    return torch.cat([norms, rest.norm(dim=-1, keepdim=True)], -1) if rest.shape[-1] else norms
