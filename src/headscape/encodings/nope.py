"""NoPE: no positional encoding; a causal mask alone (arXiv:2305.19466).

S_ij = A_ij
"""

from headscape.encodings.base import Encoding


class NoPE(Encoding):
    """Nothing is added: what the model knows of order it learns from the causal mask."""

    paper = "Kazemnejad et al. 2023, arXiv:2305.19466"
    formula = "S = A"
