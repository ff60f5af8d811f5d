"""Which encoding each layer has, written as a short pattern.

    "rope"                               every layer
    "rope*3,nope"                        three layers with RoPE, one without, and so on
    "rope:window=512*5,rope:base=1e6"    fields after colons: window=512:base=1e4
    "rope:short_factor=[1.0,1.5]"        a field with several numbers
    "cohere2:window=64"                  a shipped model's schedule, with its windows changed

The pattern repeats until every layer has its encoding, so its length must divide the number of
layers. Layers count from the input.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from headscape.encodings.base import SHARED
from headscape.encodings.names import COMMA, kinds
from headscape.encodings.shipped_schedules import SHIPPED
from headscape.errors import InputError, unknown

EXAMPLE = "write it like 'rope:window=512*3,nope'"
MOST_LAYERS = 100_000
"""A longer pattern is a typing error, and its list of layers would fill the memory."""


@dataclass(frozen=True)
class Entry:
    """The encoding of one layer."""

    name: str
    fields: Mapping[str, object]

    @property
    def at_input(self) -> bool:
        """Whether it acts on the token embeddings."""
        return any(kind.at_input for kind in kinds(self.name).parts)


def is_schedule(pattern: str) -> bool:
    """Return whether a string is a pattern and not simply a name."""
    return pattern in SHIPPED or any(sign in pattern for sign in ",*:")


def parse(pattern: str) -> list[Entry]:
    """Return one period of a pattern."""
    name, *changes = pattern.split(":")
    if name in SHIPPED and not {",", "*"} & set(pattern):
        return _changed(pattern, parse(SHIPPED[name].pattern), _parse_fields(pattern, changes))
    found: list[Entry] = []
    for part in re.split(COMMA, pattern):
        body, star, times = part.strip().rpartition("*")
        if not star:
            body, times = times, "1"
        if not re.fullmatch(r"[0-9]+", times) or int(times) < 1:
            raise InputError(
                f"{times!r} in the schedule {pattern!r} is not a number of layers of at least 1: "
                f"{EXAMPLE}."
            )
        if len(found) + int(times) > MOST_LAYERS:
            raise InputError(
                f"the schedule {pattern!r} has more than {MOST_LAYERS:,} layers: repeat less."
            )
        name, *options = body.split(":")
        if not name:
            raise InputError(f"the schedule {pattern!r} has an entry without a name: {EXAMPLE}.")
        if name in SHIPPED:
            raise InputError(
                f"{name!r} is a schedule of layers, so it cannot be an entry of {pattern!r}: write "
                f"its pattern out, {SHIPPED[name].pattern!r}."
            )
        kinds(name)
        found += [Entry(name, _parse_fields(pattern, options))] * int(times)
    if any(entry.at_input for entry in found) and len({entry.name for entry in found}) > 1:
        name = next(entry.name for entry in found if entry.at_input)
        raise InputError(
            f"{name!r} acts on the token embeddings of the whole model, so the schedule "
            f"{pattern!r} cannot combine it with a different encoding."
        )
    return found


def _parse_fields(pattern: str, options: list[str]) -> dict[str, object]:
    """Return the NAME=VALUE fields of an entry; refuse a field that is set twice."""
    found: dict[str, object] = {}
    for field, value in map(parse_field, options):
        if field in found:
            raise InputError(f"the schedule {pattern!r} sets {field!r} twice: leave one out.")
        found[field] = value
    return found


def _changed(pattern: str, period: list[Entry], changes: Mapping[str, object]) -> list[Entry]:
    """Return a shipped schedule whose entries have new values for fields that they set."""
    known = {field for entry in period for field in entry.fields}
    for field in changes:
        if field not in known:
            raise unknown(f"field of the schedule {pattern!r}", field, sorted(known))
    return [
        Entry(entry.name, {**entry.fields, **_only(changes, set(entry.fields))}) for entry in period
    ]


def per_layer(pattern: str, layers: int, options: Mapping[str, object]) -> list[Entry]:
    """Return the encoding of every layer; `options` are fields for all that have them."""
    period = parse(pattern)
    if layers % len(period):
        raise InputError(
            f"the schedule {pattern!r} has {len(period)} layers, which does not divide the "
            f"model's {layers}: choose a model whose layers are a multiple of {len(period)}, or a "
            f"shorter pattern."
        )
    known = {name for entry in period for name in _fields(entry.name)}
    for option in options:
        if option not in known:
            raise unknown(f"field of {pattern!r}", option, sorted(known))
    entries = [
        Entry(entry.name, {**_only(options, _fields(entry.name)), **entry.fields})
        for entry in period
    ]
    return entries * (layers // len(period))


def parse_field(text: str) -> tuple[str, object]:
    """Parse NAME=VALUE; a value that is not TOML is taken as a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"the field {text!r} is not of the form NAME=VALUE.")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return name, value


def shared_fields(options: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that every encoding has, for the NoPE beside an encoding at the input."""
    return _only(options, SHARED)


def _fields(name: str) -> set[str]:
    return {item.name for kind in kinds(name).all for item in fields(kind.config_type)}


def _only(options: Mapping[str, object], names: set[str] | frozenset[str]) -> dict[str, object]:
    return {key: value for key, value in options.items() if key in names}
