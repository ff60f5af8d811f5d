"""Encodings from a user's own Python file."""

import sys
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from headscape.encodings.base import Encoding
from headscape.encodings.layer_schedule import parse
from headscape.encodings.names import ENCODINGS, WRAPPERS, check_entry, kinds, register
from headscape.errors import InputError

PREFIX = "headscape_plugin_"


def load_plugin(path: Path | str) -> list[str]:
    """Import a Python file, register the encodings it defines and return their names.

    An encoding's name is its class attribute `name`, or else the lower-case class name; classes
    that start with an underscore are left out. Loading a file again replaces its encodings.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"plugin {path} does not exist: pass the path of a Python file.")
    module_name = f"{PREFIX}{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    previous = sys.modules.get(module_name)
    module = _import(path, module_name)
    found = {
        vars(kind).get("name") or kind.__name__.lower(): kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Encoding)
        and kind.__module__ == module_name
        and not kind.__name__.startswith("_")
    }
    if not found:
        _restore(module_name, previous)
        raise InputError(
            f"plugin {path} defines no encoding: derive a class from headscape.Encoding."
        )
    replaced = _remove(module_name)
    try:
        for name, kind in found.items():
            check_entry(name, kind)
    except InputError as error:
        _restore(module_name, previous)
        for name, kind in replaced.items():
            register(name, kind)
        raise InputError(f"plugin {path}: {error}") from error
    for name, kind in found.items():
        register(name, kind)
    return list(found)


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
        for name, kind in zip(entry.name.split("+"), _kinds(entry.name), strict=True):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            if file is not None and not kind.__module__.startswith("headscape."):
                files[name] = str(Path(file).resolve())
    return files


def _kinds(name: str) -> list[type[Encoding]]:
    return list(kinds(name).all)


def _import(path: Path, module_name: str) -> ModuleType:
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"plugin {path} is not a Python file: its name must end in .py.")
    module = module_from_spec(spec)
    previous = sys.modules.get(module_name)
    # A dataclass looks its module up while it is defined.
    sys.modules[module_name] = module
    try:
        # Compiled here, because the import system may reuse stale bytecode of an edited file.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102
    except SyntaxError as error:
        _restore(module_name, previous)
        raise InputError(
            f"plugin {path} has a syntax error in line {error.lineno}: {error.msg}."
        ) from error
    except Exception as error:
        _restore(module_name, previous)
        raise InputError(
            f"plugin {path} cannot be imported: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
    return module


def _restore(module_name: str, previous: ModuleType | None) -> None:
    if previous is None:
        sys.modules.pop(module_name, None)
    else:
        sys.modules[module_name] = previous


def _remove(module_name: str) -> dict[str, type[Encoding]]:
    """Take the encodings of a module out of the table and return them."""
    tables: tuple[dict[str, type[Encoding]], ...] = (ENCODINGS, WRAPPERS)  # type: ignore[assignment]
    removed = {}
    for table in tables:
        for name in [name for name, kind in table.items() if kind.__module__ == module_name]:
            removed[name] = table.pop(name)
    return removed
