"""The choice of the path that computes attention.

    decode      one query against a cache                       kernels/decode.py
    native      the C++ kernel, float32 on a CPU                 kernels/native/
    sdpa        torch's own attention, without a bias            kernels/sdpa.py
    flex        torch's FlexAttention                            kernels/flex.py
    torch       blocks in plain torch, any dtype and device      kernels/torch_blocks.py
    reference   whole matrices, the definition                   call/definition.py

Each is a module with the two functions of `Kernel`; a new one is a file and a line in `KERNELS`.
`auto` takes the first of decode, native and sdpa (on GPUs only) that serves the call, and otherwise
torch, which serves every call. FlexAttention is taken only by name. Nothing was ever run on a GPU
here. A path asked for by name runs, or raises an InputError with the reason. `choose` returns the
path that would run and why the ones before it do not. Calls come from `assemble`, which has checked
them: a kernel checks nothing but whether it serves the call.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import AttentionCall, Tap
from headscape.errors import InputError
from headscape.kernels import decode, flex, sdpa, torch_blocks
from headscape.kernels.native import adapter

Path = Literal["auto", "decode", "native", "sdpa", "flex", "torch", "reference"]


class Kernel(Protocol):
    """One way to compute attention: a module with these two functions."""

    def refuses(self, inputs: AttentionCall, /) -> str | None:
        """Return why it does not serve the call; None if it does."""
        ...

    def run(self, inputs: AttentionCall, /) -> Float[Tensor, "b h t ev"]:
        """Return the attention of rotated q and k over v."""
        ...


KERNELS: dict[str, Kernel] = {
    "decode": decode,
    "native": adapter,
    "sdpa": sdpa,
    "flex": flex,
    "torch": torch_blocks,
    "reference": definition,
}


@dataclass(frozen=True)
class Choice:
    """The path that runs, and why the ones before it do not."""

    path: Path
    passed_over: dict[str, str]


def parse_path(path: str) -> Path:
    """Return the name as a Path, or raise InputError if there is no such path."""
    if path not in get_args(Path):
        raise InputError(f"unknown attention path {path!r}: there are {', '.join(get_args(Path))}.")
    return cast("Path", path)


def choose(inputs: AttentionCall, path: Path = "auto") -> Choice:
    """Return the path that runs this call."""
    if path != "auto":
        parse_path(path)
        reason = KERNELS[path].refuses(inputs)
        if reason is not None:
            raise InputError(f"attention path {path!r} cannot run this call: {reason}.")
        return Choice(path, {})
    passed_over: dict[str, str] = {}
    candidates: tuple[Path, ...] = ("decode", "native", "sdpa")
    for candidate in candidates:
        reason = KERNELS[candidate].refuses(inputs) or _unwanted(inputs, candidate)
        if reason is None:
            return Choice(candidate, passed_over)
        passed_over[candidate] = reason
    return Choice("torch", passed_over)


def run(
    inputs: AttentionCall, path: Path = "auto", tap: Tap | None = None
) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v.

    `tap` is called with every score, on the reference path only.
    """
    if tap is not None:
        if path not in {"auto", "reference"}:
            raise InputError(f"a tap needs the reference path, got path={path!r}.")
        return definition.run(inputs, tap)
    return KERNELS[choose(inputs, path).path].run(inputs)


def _unwanted(inputs: AttentionCall, path: Path) -> str | None:
    """Return why `auto` does not take a path that supports the call."""
    if path == "decode" and torch.is_grad_enabled() and inputs.q.requires_grad:
        return "gradients are needed"
    if path == "sdpa" and inputs.q.device.type == "cpu":
        return "auto takes it on GPUs only"
    return None
