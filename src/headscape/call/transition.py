"""How keys change on their way to a query: PaTH's reflections, Wall's decay."""

from headscape.call.decay import Decay, Decayed
from headscape.call.reflections import Reflected, Reflections

Transition = Reflections | Decay
"""How a key changes on its way to a query."""
Moved = Reflected | Decayed
"""Queries and keys, prepared for the scores under a transition."""
