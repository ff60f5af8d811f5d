"""Figures 8 to 15 of the paper: one method each, final layer, all heads, one random sequence.

Fields and scale are those of the released code: T5-bias is the clipped table, with q.k over
sqrt(width); RoPE rotates interleaved pairs. What a method is called and which quantity its figure
shows are attributes of its class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headscape.encodings import kinds, slug, title
from headscape.encodings.registry import parse
from headscape.errors import InputError
from headscape.gpt2.model_config import Scale


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """One page of the paper's appendix, or one made in the same way for a different encoding."""

    number: int | None
    """Its number in the paper; None for a method the paper does not draw."""
    encoding: str
    """Name in the table of encodings, or a schedule; the figure shows its last layer."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the encoding as in the released code, where public code disagrees."""
    scale: Scale = "head_dim"
    """What q.k is divided by the square root of."""

    def __post_init__(self) -> None:
        _ = self.quantity  # raises for an encoding that has nothing to draw

    @property
    def slug(self) -> str:
        """The end of its file name."""
        return slug(self.encoding)

    @property
    def method(self) -> str:
        """The method as the paper spells it."""
        return title(self.encoding)

    @property
    def quantity(self) -> str:
        """The quantity that is drawn."""
        shown = kinds(parse(self.encoding)[-1].name).all[0].shows
        if shown is None:
            raise InputError(
                f"{self.encoding!r} acts on the embeddings, so its scores contain no bias to draw."
            )
        return shown

    @property
    def cost(self) -> float:
        """About how long its model trains, relative to one that adds a bias."""
        every = [kind for entry in parse(self.encoding) for kind in kinds(entry.name).all]
        return 2.0 if any(kind.mixes for kind in every) else 1.0

    @property
    def name(self) -> str:
        """The file name without its suffix."""
        return f"figure-{self.number:02d}-{self.slug}" if self.number else f"extra-{self.slug}"

    @property
    def title(self) -> str:
        """The heading on the page."""
        return f"Figure {self.number}: {self.method}" if self.number else self.method


FIGURES = (
    PaperFigure(number=8, encoding="cable"),
    PaperFigure(number=9, encoding="dapev2+cable"),
    PaperFigure(number=10, encoding="kerple"),
    PaperFigure(number=11, encoding="dapev2+kerple"),
    PaperFigure(number=12, encoding="alibi"),
    PaperFigure(number=13, encoding="fire"),
    PaperFigure(number=14, encoding="t5-clipped", scale="width"),
    PaperFigure(number=15, encoding="rope", fields={"pairing": "interleaved"}),
)


def figure_of(encoding: str) -> PaperFigure:
    """Return the paper's figure of an encoding, or a new one for an encoding without."""
    for figure in FIGURES:
        if encoding in {figure.encoding, figure.slug}:
            return figure
    return PaperFigure(number=None, encoding=encoding)
