"""Run an attention module a second time, up to the point where it calls its attention function."""

from typing import Any

from torch import Tensor, nn

from headscape.models.transformers.attention_call import Captured
from headscape.models.transformers.forward_arguments import neutral, uncached
from headscape.models.transformers.rounding import allowance


class Probe:
    """Runs attention modules again; `running` tells their attention function to raise Captured."""

    def __init__(self) -> None:
        self.running = False

    def without_angles(
        self, module: nn.Module, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor] | None:
        """Return q and k of the same input with all angles 0; None if it is given no angles."""
        changed = neutral(module, given)
        return None if changed is None else self._run(module, {**given, **changed})

    def growth(self, module: nn.Module, given: dict[str, Any]) -> tuple[bool, Tensor | None]:
        """Return (True, factor per position), or (False, None).

        True if equal hidden states give equal k, and q equal up to that factor.
        """
        name = next(iter(given), None)
        if name is None or not isinstance(given[name], Tensor):
            return False, None
        hidden = given[name]
        same = {**given, name: hidden[:, :1].expand_as(hidden), **(neutral(module, given) or {})}
        q, k = self._run(module, same)
        growth = (q[0] * q[0, :, :1]).sum(dim=(0, 2)) / q[0, :, :1].square().sum()
        expected = (growth[:, None] * q[:, :, :1], k[:, :, :1])
        for each, wanted in zip((q, k), expected, strict=True):
            if (each - wanted).abs().amax() > max(1e-4, allowance(q.dtype)) * each.abs().amax():
                return False, None
        return True, growth

    def _run(self, module: nn.Module, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
        self.running = True
        try:
            module.forward(**{**given, **uncached(given)})
        except Captured as found:
            return found.q, found.k
        finally:
            self.running = False
        raise AssertionError(f"{type(module).__name__} did not call its attention again")
