"""The reference of the Python API, from signatures and docstrings, which are Markdown."""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

from sphinx.pycode import ModuleAnalyzer

import headscape
from headscape.call import bias, mixing, positions
from headscape.encodings import base, context

BLOCKS = (base, context, positions, bias, mixing)
"""Modules that somebody who writes an encoding needs besides `import headscape as hs`."""
FENCE = "`" * 8
ARGUMENTS = re.compile(r"^Args:\n((?: +.*\n?)+)", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\S+): ", re.MULTILINE)
EXAMPLE = re.compile(r"^( *)>>> .*\n(?:\1\S.*(?:\n|\Z))*", re.MULTILINE)
"""A prompt and the lines below it, to the next empty or less indented line."""


def write(path: Path) -> None:
    """Write the page."""
    names = [name for name in headscape.__all__ if not name.startswith("_")]
    parts = [
        "# Python API",
        "`import headscape as hs` is all you need. Layers and heads count from 0; -1 is the last.",
        *(entry(f"headscape.{name}", getattr(headscape, name)) for name in names),
    ]
    for module in BLOCKS:
        parts += [f"## {module.__name__}", markdown(module.__doc__)]
        own = [thing for thing in vars(module).values() if belongs(thing, module)]
        parts += [entry(f"{module.__name__}.{thing.__name__}", thing) for thing in own]
    path.write_text("\n\n".join(parts) + "\n")


def belongs(thing: object, module: ModuleType) -> bool:
    """Whether a public class or function is defined in the module."""
    return (
        (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__ == module.__name__
        and not thing.__name__.startswith("_")
    )


def entry(name: str, thing: object) -> str:
    """Return one name of the reference with everything below it."""
    if inspect.isclass(thing):
        members = [directive("attribute", f"{name}.{key}", note) for key, note in fields(thing)]
        members += [member(name, key, value) for key, value in public(thing)]
        return directive("class", name + signature(thing), thing.__doc__, members)
    if callable(thing):
        return directive("function", name + signature(thing), thing.__doc__)
    if isinstance(thing, ModuleType):
        return directive("module", name, thing.__doc__)
    return directive("data", name, "")


def public(kind: type) -> list[tuple[str, object]]:
    """Return the methods and properties that a class defines itself."""
    return [
        (key, value)
        for key, value in vars(kind).items()
        if not key.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
    ]


def member(owner: str, key: str, value: object) -> str:
    """Return a method or property of a class."""
    if isinstance(value, property):
        return directive("property", f"{owner}.{key}", value.__doc__)
    function = getattr(value, "__func__", value)
    return directive("method", f"{owner}.{key}{signature(function)}", function.__doc__)


def fields(kind: type) -> list[tuple[str, str]]:
    """Return the fields and attributes of a class that have a docstring."""
    notes = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
    return [(key, " ".join(note)) for (owner, key), note in notes.items() if owner == kind.__name__]


def signature(thing: object) -> str:
    """Return the parameters with defaults; types are left to the docstring and the source."""
    if inspect.isclass(thing) and (issubclass(thing, Exception) or inspect.isabstract(thing)):
        return ""
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in found.parameters.values()
        if parameter.name not in {"self", "cls"}
    ]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def directive(kind: str, name: str, text: str | None, below: list[str] | None = None) -> str:
    """Return a MyST directive that Sphinx lists in its index."""
    fence = FENCE if below else FENCE[2:]
    body = "\n\n".join([markdown(text), *(below or [])])
    return f"{fence}{{py:{kind}}} {name}\n\n{body}\n{fence}"


def markdown(text: str | None) -> str:
    """Return a docstring without its indentation: arguments as a list, examples as code."""
    return EXAMPLE.sub(fenced, ARGUMENTS.sub(listed, inspect.cleandoc(text or "")))


def listed(found: re.Match[str]) -> str:
    """Return the arguments as a list."""
    return ARGUMENT.sub(r"- `\1`: ", found[1])


def fenced(found: re.Match[str]) -> str:
    """Return an example as a block of code."""
    return f"\n```pycon\n{textwrap.dedent(found[0]).rstrip()}\n```\n"
