"""The choice of the path that computes attention.

    decode      one query against a cache                       attention/decode.py
    native      the C++ kernel, float32 on a CPU                 attention/native/
    flex        torch's FlexAttention, on a GPU                  attention/flex.py
    torch       blocks in plain torch, any dtype and device      attention/torch_blocks.py
    reference   whole matrices, the definition                   attention/reference.py

`auto` takes the first of decode, native, flex and torch that supports the call; `torch` supports
every call. A path asked for by name runs, or raises an InputError with the reason. `choose` returns
the path that would run and why the ones before it do not.
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.attention import decode, flex, reference, torch_blocks
from headscape.attention.check import check
from headscape.attention.consistency import check_consistency
from headscape.attention.native import adapter
from headscape.attention.reference import AttentionInputs, Tap
from headscape.bias import Bias
from headscape.encodings import Encoding
from headscape.encodings.stream import Transition
from headscape.errors import InputError
from headscape.types import Positions, Visible

Path = Literal["auto", "decode", "native", "flex", "torch", "reference"]


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


def choose(inputs: AttentionInputs, path: Path = "auto") -> Choice:
    """Return the path that runs this call."""
    if path != "auto":
        parse_path(path)
        reason = _refusal(inputs, path)
        if reason is not None:
            raise InputError(f"attention path {path!r} cannot run this call: {reason}.")
        return Choice(path, {})
    passed_over: dict[str, str] = {}
    candidates: tuple[Path, ...] = ("decode", "native", "flex")
    for candidate in candidates:
        reason = _refusal(inputs, candidate) or _unwanted(inputs, candidate)
        if reason is None:
            return Choice(candidate, passed_over)
        passed_over[candidate] = reason
    return Choice("torch", passed_over)


def attend(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b hk s e"],
    v: Float[Tensor, "b hk s ev"],
    encoding: Encoding,
    bias: Bias | None,
    positions: Positions,
    visible: Visible,
    scale: float,
    path: Path = "auto",
    tap: Tap | None = None,
    unrotated: tuple[Tensor, Tensor] | None = None,
    *,
    temperature: Float[Tensor, "#b #h t"] | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " h"] | None = None,
    transition: Transition | None = None,
) -> Float[Tensor, "b h t ev"]:
    """Check the arguments and return the attention of rotated q and k over v.

    `tap` is called with every score, on the reference path only; `unrotated` is q and k before
    rotation, which a tap needs to separate content from position.
    """
    inputs = AttentionInputs(
        q, k, v, encoding, bias, positions, visible, scale, unrotated,
        temperature=temperature, softcap=softcap, sink=sink, transition=transition,
    )  # fmt: skip
    check(inputs)
    check_consistency(inputs)
    return run(inputs, path, tap)


def run(
    inputs: AttentionInputs, path: Path = "auto", tap: Tap | None = None
) -> Float[Tensor, "b h t ev"]:
    """Return the same for arguments that are known to be consistent, as a model's are."""
    if tap is not None:
        if path not in {"auto", "reference"}:
            raise InputError(f"a tap needs the reference path, got path={path!r}.")
        return reference.attend(inputs, tap)
    chosen = choose(inputs, path).path
    if chosen == "decode":
        return decode.attend(inputs)
    if chosen == "native":
        return adapter.attend(inputs)
    if chosen == "flex":
        return flex.attend(inputs)
    if chosen == "torch":
        return torch_blocks.attend(inputs)
    return reference.attend(inputs)


def _refusal(inputs: AttentionInputs, path: Path) -> str | None:
    if path == "decode":
        return decode.refuses(inputs)
    if path == "native":
        return adapter.refuses(inputs)
    if path == "flex":
        return flex.refuses(inputs)
    return None


def _unwanted(inputs: AttentionInputs, path: Path) -> str | None:
    """Return why `auto` does not take a path that supports the call."""
    if path == "decode" and torch.is_grad_enabled() and inputs.q.requires_grad:
        return "gradients are needed"
    if path == "flex" and inputs.q.device.type != "cuda":
        return "auto takes it on GPUs only"
    return None
