"""NoPE: no positional encoding (Kazemnejad et al. 2023, arXiv:2305.19466).

S_ij = A_ij
"""

from headscape.encodings.base import Encoding


class NoPE(Encoding):
    """No positional term; a model can still learn order from the causal mask."""

    title = "NoPE"
    paper = "Kazemnejad et al. 2023, arXiv:2305.19466"
    formula = "S = A"
    shows = "final"
