"""Comparisons that raise `Violated` with a sentence where two results differ."""

from torch import Tensor

from headscape.properties.probe import Observed

TIGHT = 1e-9
"""Relative to the largest value compared; float64 rounding stays far below it."""


class Violated(AssertionError):  # noqa: N818
    """A property does not hold; the message is one sentence."""


def require(holds: bool, sentence: str) -> None:  # noqa: FBT001
    """Raise Violated with this sentence unless the condition holds."""
    if not holds:
        raise Violated(sentence)


def close(ours: Tensor, theirs: Tensor, tolerance: float = TIGHT) -> bool:
    """Return whether two tensors agree within the tolerance."""
    if not ours.numel():
        return True
    size = max(1.0, theirs.abs().max().item())
    return bool((ours - theirs).abs().max() <= tolerance * size)


def require_same(ours: Tensor, theirs: Tensor, what: str, tolerance: float = TIGHT) -> None:
    """Raise Violated unless two tensors agree within the tolerance."""
    require(
        ours.shape == theirs.shape,
        f"{what} have shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}",
    )
    if not close(ours, theirs, tolerance):
        gap = (ours - theirs).abs().max().item()
        size = theirs.abs().max().item()
        raise Violated(f"{what} differ by {gap:.3g}; the largest value is {size:.3g}")


def require_same_scores(
    ours: Observed, theirs: Observed, rows: slice, what: str, cut: slice = slice(None)
) -> None:
    """Raise Violated unless the visible raw scores of `rows` agree in every layer.

    `cut` selects the tokens of `theirs` that correspond to all tokens of `ours`.
    """
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        seen = mine.visible[:, :, rows].expand_as(mine.final[:, :, rows])
        expected = other.final[:, :, cut, cut][:, :, rows]
        require_same(mine.final[:, :, rows][seen], expected[seen], f"raw scores {what}")
