"""Encodings made from a name, a model's shape and the fields of their configs.

    build("alibi", heads=12, head_dim=64, width=768, train_length=512, slopes="fairseq")
    build("dapev2+kerple", heads=12, head_dim=64, width=768, train_length=512, kernel=5)
    build("rope:window=64:sink=true", heads=12, head_dim=64, width=768, train_length=512)
    build("rope+fox:sink=true", heads=12, head_dim=64, width=768, train_length=512)

Fields go to every class in the name that has them. Those that every encoding has (window, sink ...)
go to the whole: the wrapper or the combination.
"""

from collections.abc import Mapping
from dataclasses import fields

from headscape.encodings.base import SHARED, Config, Encoding, Shape
from headscape.encodings.combined import Combined
from headscape.encodings.layer_schedule import is_schedule, parse
from headscape.encodings.names import kinds
from headscape.errors import InputError, unknown
from headscape.io.typecheck import check_values


def build(
    name: str,
    *,
    heads: int,
    head_dim: int,
    width: int,
    train_length: int,
    causal: bool = True,
    **options: object,
) -> Encoding:
    """Return a new encoding by name; `options` are the fields of its config.

    The name may have fields too, as in a schedule of layers: "rope:window=64".

    Example:
        >>> import headscape as hs
        >>> from headscape.call.bias import dense
        >>> from headscape.encodings import LayerContext
        >>> alibi = hs.build("alibi", heads=8, head_dim=64, width=512, train_length=512)
        >>> where = hs.Positions.span(4)
        >>> dense(alibi.bias(LayerContext(where)), where)[0, 0, 3, :3].tolist()
        [-1.5, -1.0, -0.5]
    """
    shape = Shape(
        heads=heads, head_dim=head_dim, width=width, train_length=train_length, causal=causal
    )
    if not is_schedule(name):
        return make(name, shape, options)
    period = parse(name)
    if len(period) > 1:
        layers = " or ".join(dict.fromkeys(repr(entry.name) for entry in period))
        raise InputError(
            f"{name!r} is a schedule of {len(period)} layers, but this is one layer: choose the "
            f"encoding of one, {layers}, with its fields."
        )
    (entry,) = period
    if twice := sorted(entry.fields.keys() & options.keys()):
        raise InputError(f"{twice[0]!r} is in {name!r} and given again: leave one of them out.")
    return make(entry.name, shape, {**entry.fields, **options})


def make(name: str, shape: Shape, options: Mapping[str, object]) -> Encoding:
    """Return a new encoding for a given shape; `options` are the fields of its config."""
    wrapper, parts = kinds(name)
    known = {item.name for kind in kinds(name).all for item in fields(kind.config_type)}
    for option in options:
        if option not in known:
            raise unknown(f"field of {name!r}", option, sorted(known))
    if wrapper is None and len(parts) == 1:
        return parts[0](shape, _config(parts[0], options))
    own = {option: value for option, value in options.items() if option not in SHARED}
    inner = [part(shape, _config(part, own)) for part in parts]
    if wrapper is None:
        return Combined(shape, _config(Combined, options), inner)
    base = inner[0] if len(inner) == 1 else Combined(shape, Config(), inner)
    return wrapper(shape, _config(wrapper, options), base)


def _config(kind: type[Encoding], options: Mapping[str, object]) -> Config:
    """Return the config of a class from those of the options that it has."""
    names = {item.name for item in fields(kind.config_type)}
    mine = {option: value for option, value in options.items() if option in names}
    return kind.config_type(**check_values(kind.config_type, mine))
