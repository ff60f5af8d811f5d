"""What position does in layers without a softmax: how fast each head forgets.

Linear attention, state space and delta rule layers keep a state that decays on every token,

    S_i = exp(g_i) S_{i-1} + (what token i writes),        g_i <= 0

so what token j wrote reaches query i times exp(g_{j+1} + ... + g_i). That product is to these
layers what exp(bias) is to attention: a positional kernel, one per head, or one per channel of a
head (KDA, RWKV). The delta rule also erases along the directions of later keys; that depends on
content and is not part of g.

    Mamba2              g = -exp(A_log) softplus(dt + dt_bias), dt within its limits
    Gated DeltaNet      g = -exp(A_log) softplus(a + dt_bias)
    KDA                 the same form, one number per channel
    lightning attention g = -slope of the head, constant: ALiBi's slopes times a factor of the layer
    RWKV-4              g = -exp(time_decay) of the channel, constant

g is taken from the call that the model itself makes to its recurrence, so nothing about a family's
projections is known here.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.models.loaded import eval_mode
from headscape.models.transformers.attention_watch import arguments
from headscape.models.transformers.published_model import body_of


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearDecay:
    """How one layer without a softmax forgets on one sequence."""

    block: int
    """Number of the block in the model, from 0; blocks with attention count too."""
    kind: str
    """Class of the layer, for example Qwen3NextGatedDeltaNet."""
    log_decay: Float[Tensor, "h t c"]
    """g of every token, in float64; c is 1 where a head has one decay for all channels."""

    def bias(self) -> Float[Tensor, "h t t c"]:
        """Return g_{j+1} + ... + g_i for query i and key j; -inf where j > i."""
        total = self.log_decay.cumsum(dim=1)
        gap = total[:, :, None] - total[:, None]
        later = torch.ones(gap.shape[1:3], dtype=torch.bool, device=gap.device).triu(1)
        return gap.masked_fill(later[..., None], -torch.inf)

    def kernel(self) -> Float[Tensor, "h t"]:
        """Return the mean of exp(bias) at distances 0, 1, 2 ..., over queries and channels."""
        total, length = self.log_decay.cumsum(dim=1), self.log_decay.shape[1]
        left = ((total[:, gap:] - total[:, : length - gap]).exp() for gap in range(length))
        return torch.stack([each.mean(dim=(1, 2)) for each in left], dim=-1)


@torch.no_grad()
def linear_decay(model: Any, tokens: Int[Tensor, "1 t"]) -> list[LinearDecay]:
    """Return the decay of every layer without a softmax on one sequence, in the model's order.

    Args:
        model: A transformers model; one without any attention may be given too.
        tokens: One sequence.

    Raises InputError if the model has no such layer, or none whose recurrence is known here.
    """
    body, found = body_of(model), list[LinearDecay]()
    running: list[nn.Module] = []
    places = dict(_blocks(body))

    def see(module: nn.Module, log_decay: Tensor) -> None:
        # [b t h c] of one sequence
        values = log_decay[0].transpose(0, 1).double()
        kind = type(module).__name__
        found.append(LinearDecay(block=places[id(module)], kind=kind, log_decay=values))

    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        for module in body.modules():
            if id(module) in places:
                stack.enter_context(_tracked(module, running))
            rate = getattr(module, "slope_rate", None)
            if isinstance(rate, Tensor):
                stack.enter_context(_lightning(module, rate, see))
        for file in {type(module).__module__ for module in body.modules()}:
            for name, read in RECURRENCES.items():
                if callable(getattr(sys.modules[file], name, None)):
                    stack.enter_context(_reported(sys.modules[file], name, read, running, see))
        body(tokens.to(model.device))
    if not found:
        raise InputError(
            f"{type(model).__name__} has no linear layer whose decay can be read: there are "
            f"readers for Mamba2, Gated DeltaNet, KDA, lightning attention and RWKV-4."
        )
    return found


See = Callable[[nn.Module, Tensor], None]


def _blocks(body: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield every module inside a model's blocks, by id, and the number of its block."""
    stacks = (each for each in body.modules() if isinstance(each, nn.ModuleList) and len(each) > 1)
    for number, block in enumerate(next(stacks, ())):
        for module in block.modules():
            yield id(module), number


@contextmanager
def _tracked(module: nn.Module, running: list[nn.Module]) -> Iterator[None]:
    """Keep the module on the list `running` while its forward runs."""
    before = module.register_forward_pre_hook(lambda *_: running.append(module))
    after = module.register_forward_hook(lambda *_: running.pop() and None)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@contextmanager
def _lightning(module: nn.Module, rate: Tensor, see: See) -> Iterator[None]:
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        see(module, -rate.reshape(1, 1, -1, 1).expand(len(hidden), hidden.shape[1], -1, 1))

    hook = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _reported(
    file: Any, name: str, read: Callable[..., Tensor], running: list[nn.Module], see: See
) -> Iterator[None]:
    """Have a function of a file of transformers report the decay it is called with."""
    original = getattr(file, name)

    def reports(*args: Any, **kwargs: Any) -> Any:
        see(running[-1], read(**arguments(original, args, kwargs)))
        return original(*args, **kwargs)

    setattr(file, name, reports)
    try:
        yield
    finally:
        setattr(file, name, original)


def _delta(g: Tensor, **_: Any) -> Float[Tensor, "b t h c"]:
    """Gated delta rule and KDA are given g [b t h] or [b t h c]."""
    return g[..., None] if g.ndim == 3 else g


def _mamba2(
    dt: Tensor,
    A: Tensor,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Float[Tensor, "b t h 1"]:
    """Mamba2 is given the step size before its bias, softplus and limits."""
    step = dt if dt_bias is None else dt + dt_bias
    step = (F.softplus(step) if dt_softplus else step).clamp(*dt_limit)
    return (A * step)[..., None]


def _rwkv(time_decay: Tensor, key: Tensor, **_: Any) -> Float[Tensor, "b t 1 c"]:
    """RWKV-4 has one decay per channel and no heads."""
    return -time_decay.exp().expand(*key.shape[:2], 1, -1)


RECURRENCES: dict[str, Callable[..., Tensor]] = {
    "torch_chunk_gated_delta_rule": _delta,
    "chunk_gated_delta_rule": _delta,
    "chunk_kimi_delta_attention": _delta,
    "mamba2_chunk_scan": _mamba2,
    "rwkv_linear_attention": _rwkv,
}
"""Functions of transformers that run a recurrence over a whole sequence."""
