"""Every encoding by name: the tables, schedules of layers, and how an encoding is built.

A plus combines encodings (rope+fox), or puts a wrapper around one (dapev2+kerple) or around a
combination (dapev2+rope+fox):

    build("alibi", heads=12, head_dim=64, width=768, train_length=512, slopes="fairseq")
    build("dapev2+kerple", heads=12, head_dim=64, width=768, train_length=512, kernel=5)
    build("rope:window=64:sink=true", heads=12, head_dim=64, width=768, train_length=512)
    build("rope+fox:sink=true", heads=12, head_dim=64, width=768, train_length=512)

Fields go to every class in the name that has them. Those that every encoding has (window, sink ...)
go to the whole: the wrapper or the combination.

Which encoding each layer of a model has is a short pattern:

    "rope"                               every layer
    "rope*3,nope"                        three layers with RoPE, one without, and so on
    "rope:window=512*5,rope:base=1e6"    fields after colons: window=512:base=1e4
    "rope:short_factor=[1.0,1.5]"        a field with several numbers
    "cohere2:window=64"                  a shipped model's schedule, with its windows changed

The pattern repeats until every layer has its encoding, so its length must divide the number of
layers. Layers count from the input.

A user's file adds encodings with `load_plugin`, an installed package through the entry-point group
`headscape.encodings`, whose entry names are the names of encodings. Such an entry is imported when
its name is first asked for.
"""

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from headscape.encodings.alibi import ALiBi
from headscape.encodings.bam import BAM
from headscape.encodings.base import SHARED, Config, Encoding, Shape
from headscape.encodings.cable import CABLE, CABLENW, KCABLE
from headscape.encodings.carope import CARoPE
from headscape.encodings.combined import Combined, Wrapper
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.encodings.deberta import DeBERTa
from headscape.encodings.fire import FIRE
from headscape.encodings.fox import FoX
from headscape.encodings.grape import GRAPE, GRAPEMultiplicative
from headscape.encodings.grid_table import GridTable
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
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.encodings.stick_breaking import StickBreaking
from headscape.encodings.t5 import T5, T5Clipped
from headscape.encodings.transformer_xl import TransformerXL
from headscape.encodings.wall import Wall
from headscape.encodings.wavlm import WavLM
from headscape.encodings.xpos import XPos
from headscape.errors import InputError, check_values, unknown
from headscape.io.files import file_name

GROUP = "headscape.encodings"

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
    "grid": GridTable,
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

EXAMPLE = "write it like 'rope:window=512*3,nope'"
MOST_LAYERS = 100_000
"""A longer pattern is a typing error, and its list of layers would fill the memory."""
COMMA = r",(?![^\[]*\])"
"""Matches a comma between entries of a schedule, but not one inside the brackets of a list."""
PREFIX = "headscape_plugin_"
"""How the names of plugins' modules begin."""
NOTE: Final = (
    "Numbers are the defaults of transformers' configs; OLMo 3's are those of its published "
    "long-context models. QK-norm and the scale of the scores belong to the model, not to the "
    "pattern."
)
"""Where the numbers of a pattern are from, and what is not in it."""


@dataclass(frozen=True)
class Shipped:
    """A schedule and the display name of the model it is from."""

    title: str
    pattern: str


GPT_OSS = (
    "rope:pairing=halves:base=150000.0:scaling=yarn:factor=32.0:trained_length=4096:truncate=false"
    ":sink=true"
)

CWM = "rope:pairing=halves:base=1e6:scaling=llama3:factor=16.0:trained_length=8192"

SHIPPED: dict[str, Shipped] = {
    "cohere2": Shipped("Cohere 2", "rope:window=4096*3,nope"),
    "exaone4": Shipped("EXAONE 4", "rope:pairing=halves:window=4096*3,nope"),
    "smollm3": Shipped("SmolLM3", "rope:pairing=halves:base=2e6*3,nope"),
    "llama4": Shipped(
        "Llama 4",
        "rope:chunk=8192:base=5e5*3,nope:temperature=llama4:temperature_start=8192",
    ),
    "gemma2": Shipped(
        "Gemma 2", "rope:pairing=halves:window=4096:softcap=50.0,rope:pairing=halves:softcap=50.0"
    ),
    "gemma3": Shipped(
        "Gemma 3", "rope:pairing=halves:window=4096:base=1e4*5,rope:pairing=halves:base=1e6"
    ),
    "olmo3": Shipped(
        "OLMo 3",
        "rope:pairing=halves:window=4096:base=5e5*3,"
        "rope:pairing=halves:base=5e5:scaling=yarn:factor=8.0:trained_length=8192",
    ),
    "gpt-oss": Shipped("gpt-oss", f"{GPT_OSS}:window=128,{GPT_OSS}"),
    "gemma3n": Shipped(
        "Gemma 3n", "rope:pairing=halves:window=512:base=1e4*4,rope:pairing=halves:base=1e6"
    ),
    "gemma4": Shipped(
        "Gemma 4",
        "rope:pairing=halves:window=512:base=1e4*5,"
        "rope:pairing=halves:base=1e6:scaling=proportional:rotary_fraction=0.25",
    ),
    "granite-swa": Shipped(
        "Granite SWA", "rope:pairing=halves:sink=true,rope:pairing=halves:sink=true:window=128*3"
    ),
    "cwm": Shipped("CWM", f"{CWM},{CWM}:window=8192*3"),
    "afmoe": Shipped("AFMoE", "rope:pairing=halves:window=1024*3,nope"),
    "ministral3": Shipped(
        "Ministral 3",
        "rope:pairing=halves:base=1e6:scaling=yarn:factor=16.0:trained_length=16384:mscale=1.0"
        ":mscale_all_dim=1.0:temperature=ministral:temperature_rate=0.1:temperature_start=16384",
    ),
    "modernbert": Shipped(
        "ModernBERT", "rope:pairing=halves:base=160000.0,rope:pairing=halves:base=1e4:window=65*2"
    ),
}
"""The layer schedules of shipped models by name.

"cohere2" stands for its pattern, and "cohere2:window=64" for the same with every window 64. `NOTE`
says where the numbers are from and what is not in a pattern. AFMoE, EXAONE 4, Gemma 3 and later,
Llama 4 and OLMo 3 have QK-norm, the model's `qk_norm`.

SmolLM3 with a window has it on the layers without RoPE, the opposite of Cohere 2: write it out. A
pattern must divide the layers, which Gemma 3's does not in a model of 26: write the last two out.
Gemma 4's last layer always has full attention, which the pattern gives if it divides the layers.
ModernBERT is bidirectional and sees 64 keys on either side. MiMo-V2-Flash has full attention at
layers 0, 5, 11, 17 and so on, which is not a repeating pattern: write all layers out.
"""


class UnknownEncodingError(InputError):
    """A name that is not in the table of encodings."""

    def __init__(self, name: str, *, combined: bool = False) -> None:
        self.name = name
        known = [*ENCODINGS, *(WRAPPERS if combined else SHIPPED)]
        advice = "; load a file of your own as a plugin"
        super().__init__(str(unknown("encoding", name, known, advice)))

    def in_folder(self, folder: Path, file: str | None = None) -> InputError:
        """Return the error for a model on disk; `file` defined its encoding when it was trained."""
        known = "" if file is None else f"; it was trained with the plugin {file}"
        return InputError(
            f"{folder} uses the encoding {self.name!r}, which is not registered{known}: load "
            f"{file or 'its file'} as a plugin first (headscape.encodings.load_plugin in Python)."
        )


def register(name: str, kind: type[Encoding]) -> None:
    """Add an encoding, or a wrapper of encodings, to the table under a new name.

    Args:
        name: The new name; one that exists is refused.
        kind: The class.

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
    classes = []
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
        classes.append(ENCODINGS[base])
    return Kinds(None if wrapper is None else WRAPPERS[wrapper], tuple(classes))


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


def build(
    name: str,
    *,
    heads: int,
    head_dim: int,
    width: int,
    train_length: int | None = None,
    causal: bool = True,
    **options: object,
) -> Encoding:
    """Return a new encoding by name.

    Args:
        name: Name of an encoding, which may have fields: "rope:window=64".
        heads: Number of query heads.
        head_dim: Size of one head.
        width: Size of the layer's input, which some encodings read.
        train_length: Tokens per sequence in training; some encodings need it.
        causal: Whether queries see earlier keys only.
        **options: Fields of the encoding's config, such as `base` of RoPE.

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
    known = _fields(name)
    for option in options:
        if option not in known:
            raise unknown(f"field of {name!r}", option, sorted(known))
    if wrapper is None and len(parts) == 1:
        return parts[0](shape, _config(parts[0], options))
    own = _only(options, known - SHARED)
    inner = [part(shape, _config(part, own)) for part in parts]
    if wrapper is None:
        return Combined(shape, _config(Combined, options), inner)
    base = inner[0] if len(inner) == 1 else Combined(shape, Config(), inner)
    return wrapper(shape, _config(wrapper, options), base)


def _config(kind: type[Encoding], options: Mapping[str, object]) -> Config:
    """Return the config of a class from those of the options that it has."""
    mine = _only(options, {item.name for item in fields(kind.config_type)})
    return kind.config_type(**check_values(kind.config_type, mine))


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
    entries: list[Entry] = []
    for part in re.split(COMMA, pattern):
        body, star, times = part.strip().rpartition("*")
        if not star:
            body, times = times, "1"
        if not re.fullmatch(r"[0-9]+", times) or int(times) < 1:
            raise InputError(
                f"{times!r} in the schedule {pattern!r} is not a number of layers of at least 1: "
                f"{EXAMPLE}."
            )
        if len(entries) + int(times) > MOST_LAYERS:
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
        entries += [Entry(name, _parse_fields(pattern, options))] * int(times)
    if any(entry.at_input for entry in entries) and len({entry.name for entry in entries}) > 1:
        name = next(entry.name for entry in entries if entry.at_input)
        raise InputError(
            f"{name!r} acts on the token embeddings of the whole model, so the schedule "
            f"{pattern!r} cannot combine it with a different encoding."
        )
    return entries


def _parse_fields(pattern: str, options: list[str]) -> dict[str, object]:
    """Return the NAME=VALUE fields of an entry; refuse a field that is set twice."""
    parsed: dict[str, object] = {}
    for field, value in map(parse_field, options):
        if field in parsed:
            raise InputError(f"the schedule {pattern!r} sets {field!r} twice: leave one out.")
        parsed[field] = value
    return parsed


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


def load_plugin(path: Path | str) -> list[str]:
    """Import a Python file, register the encodings it defines and return their names.

    An encoding's name is its class attribute `name`, or else the lower-case class name; classes
    that start with an underscore are left out. Loading a file again replaces its encodings.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"plugin {path} does not exist: pass the path of a Python file.")
    module_name = f"{PREFIX}{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    previous, replaced = sys.modules.get(module_name), dict[str, type[Encoding]]()
    try:
        module = _import(path, module_name)
        classes = {
            vars(kind).get("name") or kind.__name__.lower(): kind
            for kind in vars(module).values()
            if isinstance(kind, type)
            and issubclass(kind, Encoding)
            and kind.__module__ == module_name
            and not kind.__name__.startswith("_")
        }
        if not classes:
            raise InputError(
                f"plugin {path} defines no encoding: derive a class from headscape.Encoding."
            )
        replaced = _remove(module_name)
        for name, kind in classes.items():
            try:
                check_entry(name, kind)
            except InputError as error:
                raise InputError(f"plugin {path}: {error}") from error
    except BaseException:
        sys.modules.pop(module_name, None)
        if previous is not None:
            sys.modules[module_name] = previous
        for name, kind in replaced.items():
            register(name, kind)
        raise
    for name, kind in classes.items():
        register(name, kind)
    return list(classes)


def loaded_plugins() -> list[Path]:
    """Return the files of all loaded plugins, for a process that has to load them too."""
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIX)]
    return [Path(str(module.__file__)) for module in modules]


def defining_files(pattern: str) -> dict[str, str]:
    """Return the files that define the encodings of a schedule, without those of Headscape.

    An encoding that was typed into a notebook has no file.
    """
    files = {}
    for entry in parse(pattern):
        for name, kind in zip(entry.name.split("+"), kinds(entry.name).all, strict=True):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            if file is not None and not kind.__module__.startswith("headscape."):
                files[name] = str(Path(file).resolve())
    return files


def _import(path: Path, module_name: str) -> ModuleType:
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"plugin {path} is not a Python file: its name must end in .py.")
    module = module_from_spec(spec)
    # A dataclass looks its module up while it is defined.
    sys.modules[module_name] = module
    try:
        # Compiled here, because the import system may reuse stale bytecode of an edited file.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102
    except SyntaxError as error:
        raise InputError(
            f"plugin {path} has a syntax error in line {error.lineno}: {error.msg}."
        ) from error
    except Exception as error:
        raise InputError(
            f"plugin {path} cannot be imported: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
    return module


def _remove(module_name: str) -> dict[str, type[Encoding]]:
    """Take the encodings of a module out of the table and return them."""
    tables: tuple[dict[str, type[Encoding]], ...] = (ENCODINGS, WRAPPERS)  # type: ignore[assignment]
    removed = {}
    for table in tables:
        for name in [name for name, kind in table.items() if kind.__module__ == module_name]:
            removed[name] = table.pop(name)
    return removed
