"""The memory that the backward kernels fill in, and the sums over it.

Several workers may share a head or a parameter: each fills in a part of its own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def parts_of(workers: int) -> int:
    """Return how many parts a worker's queries are split into if workers are fewer than threads.

    Each part has its own d_k and d_v, so there are no more than needed.
    """
    threads = torch.get_num_threads()
    return 1 if workers % threads == 0 or workers >= 2 * threads else -(-threads // workers)


def buffers(
    kind: str, bias: list[Tensor], mixers: list[Tensor], parts: int, q: Tensor, k: Tensor
) -> dict[str, Tensor]:
    """Zeros for the gradients of the bias's tensors and of a mixing encoding's, by field."""
    b, h, t, _ = q.shape
    q = q.new_empty(0, dtype=torch.float32)
    double = torch.float64
    found: dict[str, Tensor] = {}
    if kind in ("toeplitz", "factor", "pieces"):
        found["d_table"] = q.new_zeros(parts, b, h, bias[0].shape[-1])
    if kind == "toeplitz" and mixers:
        found["d_fold"] = q.new_zeros(parts, b, *bias[1].shape)
    if kind == "slope":
        found["d_row"] = q.new_zeros(b, h, t, dtype=double)
        found["d_col"] = q.new_zeros(parts, b, h, k.shape[2], dtype=double)
    if kind == "pieces" or (kind == "slope" and len(bias) == 3):
        found["d_weight"] = q.new_zeros(b, h, t)
    if kind == "pieces":
        found["d_slopes"] = q.new_zeros(parts, b, h, bias[2].shape[1])
        found["d_offsets"] = torch.zeros_like(found["d_slopes"])
    if kind == "sheared":
        length, wide = bias[1].shape[1], _wide(bias[0])
        found["d_r"] = q.new_zeros(b, h, t, wide)
        found["d_basis"] = q.new_zeros(parts, b, h, length, wide)
    if kind == "sheared" and len(bias) == 4:
        wide = _wide(bias[2])
        found["d_u"] = q.new_zeros(parts, b, h, k.shape[2], wide)
        found["d_key_basis"] = q.new_zeros(parts, b, h, length, wide)
    if kind == "sheared" and len(bias) == 3:
        found["d_constant"] = q.new_zeros(parts, b, h, k.shape[2])
    for name, x in zip(("in_weight", "in_bias", "out_weight", "out_bias"), mixers):  # noqa: B905
        found[f"d_{name}"] = q.new_zeros(parts, b, *x.shape, dtype=double)
    return found


def padded(x: Tensor) -> Tensor:
    """The same with zeros up to the length of rows that the kernels want for r, u and bases."""
    more = _wide(x) - x.shape[-1]
    return F.pad(x, (0, more)).contiguous() if more else x


def _wide(x: Tensor) -> int:
    return -(-x.shape[-1] // 16) * 16


def total(x: Tensor, axes: int = 1) -> Tensor:
    """Return the sum over parts, the first axis; with `axes`, over that many first axes."""
    return x.flatten(0, axes - 1).sum(0) if x.shape[:axes].numel() > 1 else x[(0,) * axes]


def gather(kind: str, bias: list[Tensor], learned: dict[str, Tensor]) -> list[Tensor]:
    """A gradient of each of the bias's tensors, summed over parts and what they share."""
    if kind == "none":
        return []
    if kind in ("toeplitz", "factor"):
        return [learned[name].sum((0, 1)) for name in ("d_table", "d_fold") if name in learned]
    if kind == "slope":
        found = [learned["d_row"], learned["d_col"].sum(0)]
        found += [learned["d_weight"]] if len(bias) == 3 else []
        return [d.sum_to_size(x.shape) for d, x in zip(found, bias, strict=True)]
    if kind == "sheared":
        found = [learned["d_r"], total(learned["d_basis"], 2)]
        if len(bias) == 4:
            found += [total(learned["d_u"]), total(learned["d_key_basis"], 2)]
        if len(bias) == 3:
            found += [total(learned["d_constant"])]
        found = [d[..., : x.shape[-1]] for d, x in zip(found, bias, strict=True)]
        return [d.sum_to_size(x.shape).contiguous() for d, x in zip(found, bias, strict=True)]
    return [
        learned["d_table"].sum((0, 1, 2)),
        learned["d_weight"].sum(1).sum_to_size(bias[1].shape),
        learned["d_slopes"].sum((0, 1)),
        learned["d_offsets"].sum((0, 1)),
        torch.zeros_like(bias[4]),
    ]
