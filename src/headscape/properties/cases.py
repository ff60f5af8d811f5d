"""The table of properties, and a function that checks all of them on one encoding.

for result in check("my-encoding"): print(result)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from headscape.encodings import ENCODINGS, Encoding, Shape, make
from headscape.encodings.combined import Wrapper
from headscape.encodings.registry import parse
from headscape.errors import InputError, check_values
from headscape.kernels import attend
from headscape.properties.agreement import agreement
from headscape.properties.claims import claims, distant, flags
from headscape.properties.invariants import (
    causality,
    decoding,
    learned_only,
    no_memory,
    no_side_effects,
    packing,
    padding,
    prefix,
    round_trip,
    rows,
)
from headscape.properties.probe import TRAINED, Factory, shape

Property = Callable[[Factory, int, int], None]
"""Called with a factory, a number of heads and a length; raises Violated where it does not hold."""

PROPERTIES: dict[str, Property] = {
    each.__name__: each
    for each in (
        causality,
        prefix,
        decoding,
        no_memory,
        rows,
        packing,
        padding,
        learned_only,
        round_trip,
        no_side_effects,
        claims,
        distant,
        flags,
        agreement,
    )
}

SIZES = ((1, 1), (12, 2), (8, 7), (3, 2 * TRAINED + 5))
"""Heads and tokens that `check` tries."""
LONGEST = 10 * TRAINED
"""Rows of the learned table: as many positions as any property uses."""
FIELDS: dict[str, dict[str, object]] = {
    "learned": {"length": LONGEST},
    "t5": {"buckets": 16, "max_distance": 40},
    "t5-clipped": {"max_distance": 20},
    "wavlm": {"buckets": 16, "max_distance": 40},
    "grid": {"rows": 3, "columns": 5},
    "fire": {"length": 24.0},
    "cope": {"positions": 9},
    "shaw": {"left": 13},
    "deberta": {"buckets": 8, "max_distance": 30},
    "inkling": {"rank": 3, "extent": 20},
}
"""Fields with which a text of four training lengths exceeds every threshold: buckets, clipped
distances, FIRE's length, CoPE's table."""


@dataclass(frozen=True)
class Result:
    """Whether an encoding has a property."""

    property: str
    passed: bool
    detail: str
    """What the property says or, where it fails, at which size and how."""

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.property}: {self.detail}"


def check(
    encoding: str | type[Encoding],
    *,
    properties: Sequence[str] | None = None,
    sizes: Sequence[tuple[int, int]] = SIZES,
    **fields: object,
) -> list[Result]:
    """Return one result per property for an encoding, given by name or as a class.

    `fields` are fields of its config; `sizes` are pairs of heads and tokens. A wrapper is checked
    around Kerple, and every path of attention is compared with the reference.
    """
    made = _factory(encoding, fields)
    chosen = list(PROPERTIES) if properties is None else list(properties)
    for name in chosen:
        if name not in PROPERTIES:
            raise InputError(f"unknown property {name!r}: there are {', '.join(PROPERTIES)}.")
    try:
        made(shape(sizes[0][0]))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{encoding!r} cannot be built: {error!r}.") from error
    return [_result(name, made, sizes) for name in chosen]


def _factory(encoding: str | type[Encoding], fields: dict[str, object]) -> Factory:
    if isinstance(encoding, str):
        return factory(encoding, **fields)
    if not (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        raise InputError(f"check takes the name or the class of an encoding, got {encoding!r}.")
    for name, kind in ENCODINGS.items():
        if kind is encoding:
            return factory(name, **fields)

    def build(shape: Shape) -> Encoding:
        config = encoding.config_type(**check_values(encoding.config_type, fields))
        if issubclass(encoding, Wrapper):
            return encoding(shape, config, factory("kerple")(shape))
        return encoding(shape, config)

    return build


def _result(name: str, made: Factory, sizes: Sequence[tuple[int, int]]) -> Result:
    summary = (PROPERTIES[name].__doc__ or "").partition("\n")[0]
    for heads, length in sizes:
        for run in _runs(name):
            try:
                run(made, heads, length)
            except Exception as error:  # noqa: BLE001 - any error of the encoding is a failure
                found = str(error) if isinstance(error, AssertionError) else f"it raises {error!r}"
                where = f"with {heads} heads and {length} tokens"
                return Result(name, passed=False, detail=f"{where}, {found.rstrip('.')}.")
    return Result(name, passed=True, detail=summary)


def _runs(name: str) -> list[Property]:
    """Return the calls that a property makes per size: for agreement, every path and dtype."""
    if name != "agreement":
        return [PROPERTIES[name]]
    return [
        partial(agreement, path=path, dtype=dtype)
        for path in attend.paths()
        for dtype in (torch.float64, torch.float32)
    ]


def factory(name: str, **fields: object) -> Factory:
    """Return a function that makes the named encoding, with its fields, for any shape."""
    (entry,) = parse(name)
    chosen: dict[str, object] = {}
    for part in entry.name.split("+"):
        chosen |= FIELDS.get(part, {})
    chosen |= {**entry.fields, **fields}

    def build(shape: Shape) -> Encoding:
        return make(entry.name, shape, chosen)

    return build
