"""Figures 8 to 15 of the paper: one method each, final layer, all heads, one random sequence.

The conventions are those of the released code where it differs from a default of ours: T5-bias
is the clipped table, with q.k over sqrt(width); RoPE turns interleaved pairs, and as it adds no
bias its figure shows the final scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headscape.encodings import encoding_type
from headscape.errors import InputError
from headscape.gpt2.model_config import Scale


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """One page of the paper's appendix, or one made in its manner."""

    number: int | None
    """Its number in the paper; None for a method the paper does not draw."""
    slug: str
    """The end of its file name."""
    method: str
    """The method as the paper spells it."""
    encoding: str
    """The encoding as we spell it."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Conventions that are not our defaults."""
    scale: Scale = "head_dim"
    """What q.k is multiplied by."""
    quantity: str = "bias"
    """What is drawn."""

    @property
    def name(self) -> str:
        """The file name without its ending."""
        return f"figure-{self.number:02d}-{self.slug}" if self.number else f"extra-{self.slug}"

    @property
    def title(self) -> str:
        """The heading on the page."""
        return f"Figure {self.number}: {self.method}" if self.number else self.method


FIGURES = (
    PaperFigure(number=8, slug="cable", method="CABLE", encoding="cable"),
    PaperFigure(number=9, slug="dapev2-cable", method="DAPEv2+CABLE", encoding="dapev2+cable"),
    PaperFigure(number=10, slug="kerple", method="Kerple", encoding="kerple"),
    PaperFigure(number=11, slug="dapev2-kerple", method="DAPEv2+Kerple", encoding="dapev2+kerple"),
    PaperFigure(number=12, slug="alibi", method="ALiBi", encoding="alibi"),
    PaperFigure(number=13, slug="fire", method="Fire", encoding="fire"),
    PaperFigure(number=14, slug="t5-bias", method="T5-bias", encoding="t5-clipped", scale="width"),
    PaperFigure(
        number=15,
        slug="rope",
        method="RoPE",
        encoding="rope",
        fields={"pairing": "interleaved"},
        quantity="final",
    ),
)


def figure_of(encoding: str) -> PaperFigure:
    """The paper's figure of an encoding, or one in its manner for any other."""
    for figure in FIGURES:
        if encoding in {figure.encoding, figure.slug}:
            return figure
    _, base = encoding_type(encoding)
    adds = base.adds_bias or "+" in encoding or base.mixes
    if base.at_input:
        raise InputError(
            f"{encoding!r} acts on the embeddings and leaves no bias in the scores to draw."
        )
    return PaperFigure(
        number=None,
        slug=encoding.replace("+", "-"),
        method=encoding,
        encoding=encoding,
        quantity="bias" if adds else "final",
    )
