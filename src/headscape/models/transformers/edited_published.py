"""Run a published model with one layer's attention changed.

The model runs its own forward pass. The blocks before the changed layer run once; after that each
of them returns what it returned, so that many changes of a late layer cost little.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.models.model import Edit
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.layer_reading import LayerReading


@torch.inference_mode()
def edited_runs(
    body: nn.Module,
    run: Callable[[], Tensor],
    readings: Sequence[LayerReading],
    layer: int,
    edits: Sequence[Edit],
) -> Iterator[Tensor]:
    """Yield what `run` returns with each edit of a layer, counted from 0."""
    before = _blocks(body, len(readings))[:layer]
    saved: dict[int, Any] = {}
    for edit in edits:
        with ExitStack() as stack:
            skipped = len(saved) == len(before) and bool(before)
            for number, block in enumerate(before):
                if skipped:
                    _return(stack, block, saved[number])
                else:
                    _record(stack, block, saved, number)
            watch = _watch(body, readings, layer, edit)
            watch.layer = layer if skipped else 0
            stack.enter_context(watch)
            result = run()
        yield result


def _watch(
    body: nn.Module, readings: Sequence[LayerReading], layer: int, edit: Edit
) -> AttentionWatch:
    found: list[AttentionCall] = []

    def on_call(at: int, call: ObservedCall) -> None:
        found.append(readings[at].inputs(call, at))

    def on_result(at: int, result: Tensor) -> Tensor | None:
        return edit(found.pop(), result) if at == layer else None

    return AttentionWatch(body, on_call, on_result, layers={layer})


def _blocks(body: nn.Module, layers: int) -> list[nn.Module]:
    """The model's blocks in order, one per layer; empty where they cannot be told apart."""
    for module in body.modules():
        sized = isinstance(module, nn.ModuleList) and len(module) == layers
        if sized and all(_attends(block) for block in module.children()):
            return list(module.children())
    return []


def _attends(block: nn.Module) -> bool:
    """Whether a block contains attention, by the names that transformers gives its classes."""
    kinds = (type(module).__name__ for module in block.modules())
    return any("ttention" in kind or "ttn" in kind for kind in kinds)


def _record(stack: ExitStack, block: nn.Module, saved: dict[int, Any], number: int) -> None:
    def keep(_: nn.Module, __: Any, result: Any) -> None:
        saved[number] = result

    stack.callback(block.register_forward_hook(keep).remove)


def _return(stack: ExitStack, block: nn.Module, result: Any) -> None:
    # A block may have a forward of its own already, such as accelerate's.
    before = {name: vars(block)[name] for name in ("forward",) if name in vars(block)}
    vars(block)["forward"] = lambda *_, **__: result
    stack.callback(vars(block).update, before)
    stack.callback(vars(block).pop, "forward")
