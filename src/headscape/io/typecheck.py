"""Whether a config's values are of the types its fields say.

TOML, JSON and the command line bring values that nobody has looked at. A whole number is taken for
a real one where the field is real; nothing else is converted.
"""

import types
from dataclasses import Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from headscape.errors import InputError


def check_types(config: Any, skip: tuple[str, ...] = ()) -> None:
    """Refuse a field of the wrong type, naming it and its value; `skip` names those left alone."""
    hints = get_type_hints(type(config))
    for item in fields(config):
        if item.name not in skip:
            _check(config, item, hints[item.name])


def _check(config: Any, item: Field[Any], hint: Any) -> None:
    value = getattr(config, item.name)
    if get_origin(hint) is Literal:
        options = get_args(hint)
        if value not in options:
            raise InputError(
                f"{item.name}={value!r} is not one of {', '.join(map(repr, options))}."
            )
        return
    options = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    # Of what is inside a tuple or a dictionary nothing is said.
    kinds = tuple(get_origin(option) or option for option in options)
    if float in kinds and type(value) is int:
        # The one conversion; a frozen dataclass is still being made here.
        object.__setattr__(config, item.name, float(value))
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{item.name}={value!r} is not of type {kinds[0].__name__}.")
