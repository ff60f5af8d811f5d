"""A capture made of arrays that some other tool computed.

Three things can be given, and each becomes an attention call that the definition reads:

    q and k, with or without a bias     content, bias, final scores and weights
    a bias alone                        the same with a content of 0: scores before the softmax
    weights alone                       weights; what made them is not known and is refused

Weights alone are a call whose bias is their logarithm and whose weighting (`Given`) takes the
exponential, so they come back within float32 rounding of the logarithm, whatever their rows sum to.
Values where a query does not see a key are ignored, NaN included. Everywhere else a value that is
not finite is refused, with its place.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64

import headscape
from headscape.call.bias import Matrix
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.call.quantities import QUANTITIES
from headscape.call.weighting import LOG_OF_ZERO, Given
from headscape.captures.call_blocks import save_call
from headscape.captures.capture_file import Capture
from headscape.captures.file_checks import MAX_TEXT
from headscape.errors import InputError

ROW_SUM: Final = 0.01
"""How far from 1 the sum of a row of weights may be; bfloat16 is off by up to 0.004."""
MASKED: Final = -1e9
"""Values of a bias from here down are a mask, as -inf is."""
MAX_SCALE: Final = 1e9
"""Largest factor of q.k that a file may have."""
_SPACE_MARK: Final = re.compile("^[Ġ▁]+")
"""What byte-level BPE and SentencePiece write for the spaces before a token."""
_CONTINUES: Final = re.compile("##.")
"""How WordPiece begins a token that continues a word."""
SHAPES: Final = "[queries, keys], [heads, queries, keys] or [layers, heads, queries, keys]"
Layers = Float32[np.ndarray, "layers h t s"]


def from_arrays(
    weights: Any = None,
    *,
    q: Any = None,
    k: Any = None,
    bias: Any = None,
    scale: float | None = None,
    tokens: Any = None,
    causal: bool | None = None,
    normalized: bool = True,
    name: str = "own arrays",
) -> Capture:
    """Return a capture of arrays; `Capture.from_arrays` says what each argument is."""
    given = {"weights": weights, "q": q, "k": k, "bias": bias}
    arrays = {what: _layers(what, x) for what, x in given.items() if x is not None}
    if not arrays:
        raise InputError("from_arrays needs weights, or q and k, or a bias.")
    if "weights" in arrays and len(arrays) > 1:
        other = next(what for what in arrays if what != "weights")
        raise InputError(f"give weights or {other}, not both: weights follow from q, k and bias.")
    if ("q" in arrays) != ("k" in arrays):
        raise InputError(f"q and k belong together, got {'q' if 'q' in arrays else 'k'} alone.")
    if scale is not None and not ("q" in arrays and 0 < scale < MAX_SCALE):
        raise InputError(f"scale is a positive factor of q.k, got {scale!r}.")
    count, heads, length = _sizes(arrays)
    whole = arrays.get("weights", arrays.get("bias"))
    if causal is None:
        causal = whole is None or all(_hides_later(layer, "bias" in arrays) for layer in whole)
    calls = {}
    for number in range(count):
        part = {what: x[number % len(x)] for what, x in arrays.items()}
        call = _call(part, heads, scale, causal=causal, normalized=normalized, layer=number)
        calls[number] = save_call(call)
    pieces, numbers = _tokens(tokens, length)
    alone = "weights" in arrays
    return Capture(
        encoding="unknown",
        conventions={},
        claims={},
        model={
            "name": _text("name", name),
            "shows": "weights" if alone else "bias" if "bias" in arrays else "final",
            "layers": count,
            "heads": heads,
        },
        layers=tuple(range(count)),
        heads=tuple(range(heads)),
        length=length,
        causal=causal,
        sequence={"pieces": pieces},
        provenance={"headscape": headscape.__version__, "arrays": ", ".join(arrays)},
        trained=True,
        tokens=numbers,
        positions=np.arange(length, dtype=np.int64),
        calls=calls,
        shown=("weights",) if alone else QUANTITIES,
    )


def _layers(what: str, value: Any) -> Layers:
    """Return an array as [layers, heads, queries, keys or dims], copied to float32."""
    if isinstance(value, list | tuple) and value and hasattr(value[0], "shape"):
        parts = [_array(what, part) for part in value]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            listed = ", ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise InputError(f"the layers of {what} have different shapes, such as {listed}.")
        found = np.stack(parts)
    else:
        found = _array(what, value)
    if found.ndim == 5:
        # Each layer of transformers' `attentions` is a batch.
        if found.shape[1] != 1:
            raise InputError(
                f"{what} is a batch of {found.shape[1]} sequences: choose one, such as "
                f"[layer[:1] for layer in {what}]."
            )
        found = found[:, 0]
    if found.ndim not in (2, 3, 4) or 0 in found.shape:
        raise InputError(f"{what} must have shape {SHAPES}, got {list(found.shape)}.")
    return cast("Layers", found.reshape((1,) * (4 - found.ndim) + found.shape))


def _array(what: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.numpy() if not value.is_floating_point() else value.float().numpy()
    try:
        found = np.asarray(value)
        if found.dtype.kind in "cOSUM":
            raise InputError(f"{what} must be real numbers, got {found.dtype}.")
        with np.errstate(over="ignore"):
            return np.array(found, dtype=np.float32)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{what} must be an array of numbers, got {type(value).__name__}."
        ) from error


def _sizes(arrays: dict[str, Layers]) -> tuple[int, int, int]:
    """Return the number of layers, heads and tokens; refuse arrays that do not fit together."""
    count = max(len(x) for x in arrays.values())
    heads = (arrays.get("q", next(iter(arrays.values())))).shape[1]
    length = next(iter(arrays.values())).shape[2]
    for what, x in arrays.items():
        square = what in ("weights", "bias")
        if x.shape[2] != length or (square and x.shape[3] != length):
            raise InputError(
                f"queries and keys must be the tokens of one sequence, {length} of both, but "
                f"{what} has shape {list(x.shape[1:])}."
            )
        if len(x) not in (1, count) or (len(x) == 1 < count and what != "bias"):
            raise InputError(
                f"arrays must have the same number of layers: one has {count}, {what} {len(x)}."
            )
        if heads % x.shape[1] or (what in ("q", "weights") and x.shape[1] != heads):
            raise InputError(f"{what} has {x.shape[1]} heads, which do not divide {heads} heads.")
        if what == "bias" and x.shape[1] not in (1, heads):
            raise InputError(f"bias has {x.shape[1]} heads, but q has {heads}.")
    if "q" in arrays and arrays["q"].shape[3] != arrays["k"].shape[3]:
        dims = arrays["q"].shape[3], arrays["k"].shape[3]
        raise InputError(f"q has {dims[0]} dims per head, but k has {dims[1]}.")
    return count, heads, length


def _hides_later(layer: Float32[np.ndarray, "h t s"], is_bias: bool) -> bool:  # noqa: FBT001
    """Return whether no query of a layer sees a later key."""
    later = layer[:, ~np.tri(layer.shape[-1], dtype=bool)]
    hidden = (later <= MASKED) if is_bias else (later == 0)
    return bool((hidden | np.isnan(later)).all())


def _call(
    part: dict[str, Float32[np.ndarray, "h t _"]],
    heads: int,
    scale: float | None,
    *,
    causal: bool,
    normalized: bool,
    layer: int,
) -> AttentionCall:
    """Return one layer as an attention call, after its values are checked."""
    first = next(iter(part.values()))
    length = first.shape[1]
    seen = np.tri(length, dtype=bool) if causal else np.ones((length, length), dtype=bool)
    values, weighting = part.get("bias"), None
    if "weights" in part:
        _check_weights(part["weights"], seen, layer, causal=causal, normalized=normalized)
        weighting = Given()
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.maximum(np.log(part["weights"]), np.float32(LOG_OF_ZERO))
    for what in ("q", "k"):
        if what in part:
            _check_finite(part[what], np.ones(part[what].shape[1:], dtype=bool), what, layer)
    if "bias" in part:
        _check_finite(part["bias"], seen, "bias", layer)
    q = part.get("q", np.zeros((heads, length, 1), dtype=np.float32))
    k = part.get("k", np.zeros((1, length, 1), dtype=np.float32))
    queries, keys = torch.from_numpy(q)[None], torch.from_numpy(k)[None]
    matrix = None
    if values is not None:
        shown = np.where(seen, values, np.float32(0))
        matrix = Matrix(torch.from_numpy(shown).expand(heads, -1, -1)[None])
    return AttentionCall(
        q=queries,
        k=keys,
        v=keys,
        bias=matrix,
        positions=Positions.span(length),
        visible=Visible(causal),
        scale=1 / math.sqrt(q.shape[2]) if scale is None else float(scale),
        weighting=weighting,
    )


def _check_weights(
    weights: Float32[np.ndarray, "h t s"],
    seen: Bool[np.ndarray, "t s"],
    layer: int,
    *,
    causal: bool,
    normalized: bool,
) -> None:
    _check_finite(weights, seen, "weights", layer)
    if (weights < 0).any():
        where = _place(weights < 0, layer)
        raise InputError(
            f"weights are negative at {where}: attention weights are 0 or more; give scores "
            f"before the softmax as a bias."
        )
    if causal and (np.nan_to_num(weights) * ~seen).any():
        where = _place(np.nan_to_num(weights) * ~seen != 0, layer)
        raise InputError(f"weights are not causal at {where}: leave causal out.")
    sums = np.where(seen, weights, 0).sum(axis=-1, dtype=np.float64)
    wrong = np.abs(sums - 1) > ROW_SUM
    if normalized and wrong.any():
        head, query = (int(at[0]) for at in np.nonzero(wrong))
        raise InputError(
            f"the weights of layer {layer}, head {head}, query {query} (counted from 0) sum to "
            f"{sums[head, query]:.4g} instead of 1: pass normalized=False if that is right, as "
            f"with a sink, padding or a sigmoid."
        )


def _check_finite(
    values: Float32[np.ndarray, "h r c"], seen: Bool[np.ndarray, "r c"], what: str, layer: int
) -> None:
    wrong = ~np.isfinite(values) & seen
    if what == "bias":
        wrong |= (values <= MASKED) & seen
    if wrong.any():
        first = tuple(int(at[0]) for at in np.nonzero(wrong))
        hidden = ", where a key is visible" if what in ("weights", "bias") else ""
        raise InputError(
            f"{what} is {values[first]:g} at {_place(wrong, layer, what)}{hidden}: give finite "
            f"numbers."
        )


def _place(where: Bool[np.ndarray, "h r c"], layer: int, what: str = "weights") -> str:
    head, row, column = (int(at[0]) for at in np.nonzero(where))
    sides = {"q": ("query", "dim"), "k": ("key", "dim")}.get(what, ("query", "key"))
    return f"layer {layer}, head {head}, {sides[0]} {row}, {sides[1]} {column} (counted from 0)"


def _tokens(tokens: Any, length: int) -> tuple[list[str], Int64[np.ndarray, " t"]]:
    """Return the tokens' text, if any, and their numbers, which are 0, 1, 2 ... if unknown."""
    unknown = np.arange(length, dtype=np.int64)
    if tokens is None:
        return [], unknown
    if isinstance(tokens, str):
        raise InputError("tokens must be one text per token, such as text.split(), got one text.")
    listed: Sequence[Any] = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    if len(listed) != length:
        raise InputError(f"tokens has length {len(listed)}, but the arrays have {length} tokens.")
    if all(isinstance(each, str) for each in listed):
        return [_text("a token", each) for each in _with_spaces(listed)], unknown
    if all(type(each) is int and abs(each) < 1 << 63 for each in listed):
        return [], np.array(listed, dtype=np.int64)
    raise InputError("tokens must be texts, or the numbers of one sequence.")


def _with_spaces(tokens: Sequence[str]) -> list[str]:
    """Return tokens that read as running text when they are joined.

    Marks of a tokenizer become what they stand for: a leading "Ġ" or "▁" a space, a leading "##" no
    space. If no token contains white space then, each but the first gets a space before it.
    """
    marked = [_SPACE_MARK.sub(lambda mark: " " * len(mark[0]), token) for token in tokens]
    if any(character.isspace() for token in marked for character in token):
        return marked
    return [
        token[2:] if _CONTINUES.match(token) else f" {token}" if number else token
        for number, token in enumerate(marked)
    ]


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise InputError(f"{what} must be a text of at most {MAX_TEXT:,} characters.")
    return value
