"""What an encoding is called in a caption, a legend and a column's head: the paper's word, if any.

The paper is "Context-aware Biases for Length Extrapolation" (EMNLP 2025).
"""

from collections.abc import Mapping
from typing import Final

TITLES: Final[Mapping[str, str]] = {
    "cable": "CABLE",
    "cable-nw": "CABLE_NW",
    "k-cable": "K-CABLE",
    "alibi": "ALiBi",
    "fire": "Fire",
    "t5": "T5 buckets",
    "t5-clipped": "T5-bias",
    "kerple": "Kerple",
    "kerple-power": "Kerple (power)",
    "rope": "RoPE",
    "xpos": "xPos",
    "learned": "Learnable",
    "sinusoidal": "Sinusoidal",
    "nope": "NoPE",
    "sandwich": "Sandwich",
    "fox": "FoX",
    "cope": "CoPE",
    "dape": "DAPE",
    "dapev2": "DAPEv2",
}


def title(encoding: str) -> str:
    """The name of an encoding, wrapped or not; one that is not in the table is its own."""
    return "+".join(TITLES.get(part, part) for part in encoding.split("+"))
