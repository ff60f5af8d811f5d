"""What position does in every head of a capture or a model, as numbers with intervals."""

from headscape.measures.definitions import MEASURES, Measure, register_measure

__all__ = ["MEASURES", "Measure", "register_measure"]
