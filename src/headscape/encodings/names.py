"""Every encoding by name: the table of the package, and what users and installed packages add.

A plus combines encodings (rope+fox), or puts a wrapper around one (dapev2+kerple) or around a
combination (dapev2+rope+fox). An installed package
adds an encoding through the entry-point group `headscape.encodings`, whose entry names are the
names of encodings. Such an entry is imported when its name is first asked for.
"""

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple

from headscape.encodings.alibi import ALiBi
from headscape.encodings.bam import BAM
from headscape.encodings.base import Encoding
from headscape.encodings.cable import CABLE, CABLENW, KCABLE
from headscape.encodings.carope import CARoPE
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.encodings.deberta import DeBERTa
from headscape.encodings.fire import FIRE
from headscape.encodings.fox import FoX
from headscape.encodings.grape import GRAPE
from headscape.encodings.grape_multiplicative import GRAPEMultiplicative
from headscape.encodings.grid_table import Grid
from headscape.encodings.inkling import Inkling
from headscape.encodings.kerple import Kerple, KerplePower, KerpleWeight
from headscape.encodings.learned import Learned
from headscape.encodings.nope import NoPE
from headscape.encodings.path import PaTH
from headscape.encodings.pope import PoPE
from headscape.encodings.repo import RePo
from headscape.encodings.rope import RoPE
from headscape.encodings.sandwich import Sandwich
from headscape.encodings.selective_rope import SelectiveRoPE
from headscape.encodings.shaw import Shaw
from headscape.encodings.shipped_schedules import SHIPPED
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.encodings.stick_breaking import StickBreaking
from headscape.encodings.t5 import T5, T5Clipped
from headscape.encodings.transformer_xl import TransformerXL
from headscape.encodings.wall import Wall
from headscape.encodings.wavlm import WavLM
from headscape.encodings.wrapper import Wrapper
from headscape.encodings.xpos import XPos
from headscape.errors import InputError, unknown
from headscape.io.file_name import file_name

GROUP = "headscape.encodings"
COMMA = r",(?![^\[]*\])"
"""Matches a comma between entries of a schedule, but not one inside the brackets of a list."""

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": NoPE,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rope": RoPE,
    "xpos": XPos,
    "pope": PoPE,
    "selective-rope": SelectiveRoPE,
    "carope": CARoPE,
    "repo": RePo,
    "grape-m": GRAPEMultiplicative,
    "path": PaTH,
    "wall": Wall,
    "alibi": ALiBi,
    "t5": T5,
    "t5-clipped": T5Clipped,
    "wavlm": WavLM,
    "grid": Grid,
    "kerple": Kerple,
    "kerple-power": KerplePower,
    "kerple-weight": KerpleWeight,
    "bam": BAM,
    "sandwich": Sandwich,
    "fire": FIRE,
    "cable": CABLE,
    "cable-nw": CABLENW,
    "k-cable": KCABLE,
    "fox": FoX,
    "cope": CoPE,
    "stick-breaking": StickBreaking,
    "shaw": Shaw,
    "transformer-xl": TransformerXL,
    "deberta": DeBERTa,
    "inkling": Inkling,
    "grape": GRAPE,
}

WRAPPERS: dict[str, type[Wrapper]] = {
    "dape": DAPE,
    "dapev2": DAPEv2,
}


class UnknownEncodingError(InputError):
    """A name that is not in the table of encodings."""

    def __init__(self, name: str, *, combined: bool = False) -> None:
        self.name = name
        known = [*ENCODINGS, *(WRAPPERS if combined else SHIPPED)]
        advice = "; load a file of your own with --plugin"
        super().__init__(str(unknown("encoding", name, known, advice)))

    def in_folder(self, folder: Path, file: str | None = None) -> InputError:
        """Return the error for a model on disk; `file` defined its encoding when it was trained."""
        known = "" if file is None else f"; it was trained with the plugin {file}"
        return InputError(
            f"{folder} uses the encoding {self.name!r}, which is not registered{known}: give "
            f"--plugin {file or 'FILE'}, or in Python call headscape.encodings.load_plugin first."
        )


def register(name: str, kind: type[Encoding]) -> None:
    """Add an encoding, or a wrapper of encodings, to the table under a new name.

    Example:
        >>> import headscape as hs
        >>> class Nothing(hs.Encoding):
        ...     '''Adds nothing.'''
        >>> hs.register("nothing", Nothing)
        >>> hs.build("nothing", heads=2, head_dim=8, width=16, train_length=32).title
        'Nothing'
    """
    check_entry(name, kind)
    if issubclass(kind, Wrapper):
        WRAPPERS[name] = kind
    else:
        ENCODINGS[name] = kind


def check_entry(name: object, kind: object) -> None:
    """Raise InputError unless `register(name, kind)` is possible."""
    if not (isinstance(kind, type) and issubclass(kind, Encoding)):
        raise InputError(f"an encoding must be a subclass of headscape.Encoding, got {kind!r}.")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise InputError(
            f"an encoding's name must be lower-case letters, digits, - and _, got {name!r}."
        )
    if name in ENCODINGS or name in WRAPPERS or name in SHIPPED or name == "none":
        raise InputError(
            f"there is already an encoding named {name!r}: give {kind.__name__} a different name."
        )


class Kinds(NamedTuple):
    """The classes that a name stands for."""

    wrapper: type[Wrapper] | None
    parts: tuple[type[Encoding], ...]
    """One encoding, or those that are combined."""

    @property
    def all(self) -> tuple[type[Encoding], ...]:
        """The wrapper, if there is one, and the parts."""
        return self.parts if self.wrapper is None else (self.wrapper, *self.parts)


def split_name(name: str) -> tuple[str | None, list[str]]:
    """Return the wrapper, if any, and the encodings in a name with pluses."""
    first, *rest = name.split("+")
    if first not in ENCODINGS and first not in WRAPPERS:
        _load_installed(first)
    return (first, rest) if first in WRAPPERS and rest else (None, [first, *rest])


def kinds(name: str) -> Kinds:
    """Return the classes that a name stands for."""
    wrapper, parts = split_name(name)
    found = []
    for part in parts:
        if not part:
            raise InputError(f"{name!r} has a plus without an encoding beside it.")
        base = "nope" if part == "none" else part  # DAPE's authors write "none" for scores alone
        if base not in ENCODINGS and base not in WRAPPERS:
            _load_installed(base)
        if base in WRAPPERS:
            raise InputError(
                f"{base!r} wraps an encoding, so it comes first: write {base + '+kerple'!r}, for "
                f"example."
            )
        if base not in ENCODINGS:
            raise UnknownEncodingError(base, combined=len(parts) > 1)
        if len(parts) > 1 and parts.count(part) > 1:
            raise InputError(f"{part!r} is in {name!r} more than once: leave one out.")
        found.append(ENCODINGS[base])
    return Kinds(None if wrapper is None else WRAPPERS[wrapper], tuple(found))


def title(name: str) -> str:
    """Return the display name of an encoding, for example DAPEv2+Kerple for dapev2+kerple.

    In a schedule every name is replaced: RoPE*3,NoPE for rope*3,nope, Cohere 2 for cohere2.
    """
    if name in SHIPPED:
        return SHIPPED[name].title
    if re.search("[,:*]", name):
        entry = rf"(^|{COMMA})\s*([^,:*]+)"
        return re.sub(entry, lambda part: part[1] + title(part[2].strip()), name)
    return "+".join(kind.title for kind in kinds(name).all)


def slug(name: str) -> str:
    """Return how the file name of an encoding's figure ends, for example dapev2-kerple."""
    if name in SHIPPED or re.search("[,:*]", name):
        return file_name(name)
    wrapper, parts = split_name(name)
    own = [kind.slug or part for kind, part in zip(kinds(name).parts, parts, strict=True)]
    return "-".join(own if wrapper is None else [wrapper, *own])


def load_all_installed() -> None:
    """Register every encoding that installed packages provide."""
    for entry in entry_points(group=GROUP):
        if entry.name not in ENCODINGS and entry.name not in WRAPPERS:
            _load_entry(entry)


def _load_installed(name: str) -> None:
    for entry in entry_points(group=GROUP, name=name):
        _load_entry(entry)


def _load_entry(entry: EntryPoint) -> None:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        register(entry.name, entry.load())
    except Exception as error:
        raise InputError(
            f"the encoding {entry.name!r} of the package {package} cannot be loaded: {error} "
            f"Update or uninstall {package}."
        ) from error
