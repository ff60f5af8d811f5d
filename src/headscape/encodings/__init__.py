"""Every encoding by name, one file per paper.

    build("alibi", heads=12, head_dim=64, width=768, train_length=512, slopes="fairseq")
    build("dapev2+kerple", heads=12, head_dim=64, width=768, train_length=512, kernel=5)

A name with a plus is a wrapper around an encoding; fields go to whichever of the two has them.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches

from headscape.encodings.alibi import ALiBi
from headscape.encodings.base import Encoding, Shape, Stream
from headscape.encodings.cable import CABLE, CABLENW, KCABLE
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.encodings.fire import FIRE
from headscape.encodings.fox import FoX
from headscape.encodings.kerple import Kerple, KerplePower
from headscape.encodings.learned import Learned
from headscape.encodings.nope import NoPE
from headscape.encodings.rope import RoPE
from headscape.encodings.sandwich import Sandwich
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.encodings.t5 import T5, T5Clipped
from headscape.encodings.wrapper import Wrapper
from headscape.encodings.xpos import XPos
from headscape.errors import InputError

__all__ = ["ENCODINGS", "WRAPPERS", "Encoding", "Shape", "Stream", "build", "encoding_type", "make"]

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": NoPE,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rope": RoPE,
    "xpos": XPos,
    "alibi": ALiBi,
    "t5": T5,
    "t5-clipped": T5Clipped,
    "kerple": Kerple,
    "kerple-power": KerplePower,
    "sandwich": Sandwich,
    "fire": FIRE,
    "cable": CABLE,
    "cable-nw": CABLENW,
    "k-cable": KCABLE,
    "fox": FoX,
    "cope": CoPE,
}

WRAPPERS: dict[str, type[Wrapper]] = {
    "dape": DAPE,
    "dapev2": DAPEv2,
}


def encoding_type(name: str) -> tuple[type[Wrapper] | None, type[Encoding]]:
    """The wrapper, if any, and the encoding that a name stands for."""
    wrapper, plus, base = name.rpartition("+")
    if base in WRAPPERS:
        raise InputError(f"{base!r} wraps another encoding: write '{base}+kerple', say.")
    if base == "none":
        base = "nope"  # DAPE's authors write "none" for scores alone
    if base not in ENCODINGS:
        raise InputError(_unknown("encoding", base, list(ENCODINGS)))
    if plus and wrapper not in WRAPPERS:
        raise InputError(_unknown("wrapper", wrapper, list(WRAPPERS)))
    return WRAPPERS[wrapper] if plus else None, ENCODINGS[base]


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
    """Make an encoding; `options` are the fields of its config."""
    shape = Shape(
        heads=heads, head_dim=head_dim, width=width, train_length=train_length, causal=causal
    )
    return make(name, shape, options)


def make(name: str, shape: Shape, options: Mapping[str, object]) -> Encoding:
    """The same for a given shape, with fields from anywhere."""
    wrapper, base = encoding_type(name)
    base_fields = {item.name for item in fields(base.config_type)}
    wrapper_fields = {item.name for item in fields(wrapper.config_type)} if wrapper else set()
    for option in options:
        if option not in base_fields | wrapper_fields:
            known = sorted(base_fields | wrapper_fields)
            raise InputError(_unknown(f"field of {name!r}", option, known))
    inner = base(shape, base.config_type(**_only(options, base_fields)))
    if wrapper is None:
        return inner
    return wrapper(shape, wrapper.config_type(**_only(options, wrapper_fields)), inner)


def _only(options: Mapping[str, object], names: set[str]) -> dict[str, object]:
    return {key: value for key, value in options.items() if key in names}


def _unknown(what: str, name: str, known: list[str]) -> str:
    if not known:
        return f"unknown {what} {name!r}: it has none."
    near = get_close_matches(name, known, n=len(known), cutoff=0.4)
    ordered = near + [other for other in known if other not in near]
    return f"unknown {what} {name!r}: there are {', '.join(ordered)}."
