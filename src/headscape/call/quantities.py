"""The names of what a capture shows of an attention call; readable without torch.

content   scale q . k before rotation       final     what the softmax takes
bias      what position adds                weights   the softmax, or parts of a stick
"""

from typing import Final, Literal

Quantity = Literal["content", "bias", "final", "weights"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("content", "bias", "final", "weights")
