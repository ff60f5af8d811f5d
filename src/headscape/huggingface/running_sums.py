"""The running sums of CABLE and FoX beside the keys and values of a transformers cache.

A cache layer keeps what its tokens' sums were as an attribute. Beam search reorders a layer's
batch; the layer's methods that do are wrapped once, so that the sums follow. Which tokens are valid
is said by the mask's first query, so cropping and resetting need nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headscape.encodings import Encoding, Stream

SUMS = "headscape_sums"
FOLLOWS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reorder_cache": lambda sums, rows: sums.index_select(0, rows),
    "batch_select_indices": lambda sums, rows: sums[rows],
    "batch_repeat_interleave": lambda sums, times: sums.repeat_interleave(times, dim=0),
}
"""What happens to the sums when a cache layer's method changes its batch."""


def streams(
    encoding: Encoding, x: Tensor, layer: Any, first_query: int, keys: slice
) -> tuple[Stream | None, Stream | None]:
    """Return the running sums of the queries, which `x` is the input of, and of the keys.

    `layer` is the cache's layer, or None without a cache; `keys` are indices of tokens.
    """
    if not encoding.streams:
        return None, None
    before = None if layer is None or not first_query else getattr(layer, SUMS)[..., :first_query]
    new = encoding.stream(x, None if before is None else before[..., -1])
    assert new is not None
    total = new.sums if before is None else torch.cat([before, new.sums], -1)
    if layer is not None:
        _follow(layer)
        setattr(layer, SUMS, total.detach())
    whole = torch.nn.functional.pad(total, (0, max(0, keys.stop - total.shape[-1])))[..., keys]
    backward = None if new.backward is None else new.backward[..., keys]
    return new, Stream(whole, backward=backward)


def _follow(layer: Any) -> None:
    if hasattr(layer, SUMS):
        return

    def wrap(name: str, change: Callable[[Tensor, Any], Tensor]) -> None:
        original = getattr(layer, name)

        def run(how: Any) -> Any:
            setattr(layer, SUMS, change(getattr(layer, SUMS), how))
            return original(how)

        setattr(layer, name, run)

    for name, change in FOLLOWS.items():
        if hasattr(layer, name):
            wrap(name, change)
