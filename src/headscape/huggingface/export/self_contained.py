"""One Python file with an exported model and the encodings it uses, for trust_remote_code.

The file is put together from this package's own source: starting at the model's classes and the
encodings' classes, every definition that is used is copied, with its comments and docstrings, in
the order of imports. Shape annotations become plain `Tensor`, so the file needs only torch,
transformers and the standard library. A name that two modules define is renamed in the second.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from types import ModuleType

import headscape
from headscape.encodings import WRAPPERS, kinds
from headscape.encodings.registry import PREFIX, split_name
from headscape.errors import InputError

NAMES = "headscape.encodings.registry"
MODEL = "headscape.huggingface.export.exported_model"
ATTENTION = "headscape.huggingface.export.exported_attention"
TABLE = '''ENCODINGS = {{{encodings}}}
WRAPPERS = {{{wrappers}}}


def kinds(name):
    """Return the classes that a name stands for."""
    parts = name.split("+")
    wrapper = WRAPPERS.get(parts[0])
    encodings = parts if wrapper is None else parts[1:]
    return Kinds(wrapper, tuple(ENCODINGS[part] for part in encodings))
'''
EXAMPLE = re.compile(r'\n\n +Example:\n.*?(?=\n +""")', re.DOTALL)
"""The end of a docstring with an example, which imports headscape."""
ATTEND = '''def attend(inputs):
    """Return the attention of rotated q and k over v."""
    return attend_rows(inputs)
'''
Place = tuple[str, str]
"""A module and the name of a definition in it."""


def modeling_file(names: Sequence[str]) -> str:
    """Return the source of a file with the model and the encodings of these names."""
    bundle = Bundle()
    tables: dict[str, list[str]] = {"encodings": [], "wrappers": []}
    for name in dict.fromkeys(part for whole in names for part in _parts(whole)):
        kind = WRAPPERS[name] if name in WRAPPERS else kinds(name).parts[0]
        try:
            inspect.getsource(kind)
        except (OSError, TypeError) as error:
            raise InputError(
                f"the encoding {name!r} has no source file, so its code cannot be written: define "
                f"{kind.__name__} in a plugin file."
            ) from error
        place = bundle.need(kind.__module__, kind.__name__)
        group = "wrappers" if name in WRAPPERS else "encodings"
        tables[group].append(f'"{name}": {bundle.final(place)}')
    written = {key: ", ".join(rows) for key, rows in tables.items()}
    bundle.need(NAMES, "Kinds")
    bundle.override(NAMES, ("ENCODINGS", "WRAPPERS", "kinds"), TABLE.format(**written))
    bundle.need(ATTENTION, "attend_rows")
    bundle.override(ATTENTION, ("attend",), ATTEND)
    for model in ("HeadscapeModel", "HeadscapeForCausalLM"):
        bundle.need(MODEL, model)
    about = f"Written by headscape {headscape.__version__} for {', '.join(names)}."
    note = "It needs torch and transformers only. Apache License 2.0."
    return f'"""An exported model and its encodings.\n\n{about} {note}\n"""\n\n{bundle.text()}'


def _parts(name: str) -> list[str]:
    """Return the wrapper and the encodings in a name such as dapev2+kerple."""
    wrapper, parts = split_name(name)
    return parts if wrapper is None else [wrapper, *parts]


@dataclass
class Module:
    """One source module: its definitions, and where the names it imports come from."""

    text: str
    tree: ast.Module
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    ours: dict[str, Place] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """Imported name -> the import statement, for other packages."""

    @classmethod
    def read(cls, name: str) -> "Module":
        """Read the source of an imported module."""
        text = inspect.getsource(_imported(name))
        found = cls(text, ast.parse(text))
        for statement in found.tree.body:
            for defined in _defined(statement):
                found.definitions[defined] = statement
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    found._add_from(str(statement.module), alias)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    spelled = f"import {alias.name}"
                    if alias.asname:
                        spelled += f" as {alias.asname}"
                    found.others[alias.asname or alias.name.partition(".")[0]] = spelled
        return found

    def _add_from(self, module: str, alias: ast.alias) -> None:
        if module.partition(".")[0] == "headscape":
            self.ours[alias.asname or alias.name] = (module, alias.name)
        elif module != "jaxtyping":
            end = f" as {alias.asname}" if alias.asname else ""
            self.others[alias.asname or alias.name] = f"from {module} import {alias.name}{end}"


class Bundle:
    """The definitions that a file needs, and their text."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        self.needed: dict[str, list[ast.stmt]] = {}
        self.taken: dict[str, Place | str] = {}
        """Name in the file -> the definition or the import statement that has it."""
        self.renamed: dict[Place, str] = {}
        self.overridden: dict[Place, None] = {}
        self.extra: dict[str, str] = {}
        self.edges: dict[str, set[str]] = {}

    def override(self, module: str, names: Sequence[str], text: str) -> None:
        """Put a text in place of some definitions of a module."""
        self.extra[module] = text
        self.edges.setdefault(module, set()).update(self.needed.keys() - {module})
        for name in names:
            self.overridden[module, name] = None
            self._take((module, name))

    def need(self, module: str, name: str) -> Place:
        """Add a definition with all it uses; return where it is defined."""
        source = self._module(module)
        if (module, name) in self.overridden:
            return module, name
        if name in source.ours:
            return self.need(*source.ours[name])
        statement = source.definitions[name]
        kept = self.needed.setdefault(module, [])
        if statement in kept:
            return module, name
        kept.append(statement)
        for defined in _defined(statement):
            self._take((module, defined))
        for used in sorted(_used(statement)):
            self._use(module, source, used)
        return module, name

    def final(self, place: Place) -> str:
        """Return the name of a definition in the file."""
        return self.renamed.get(place, place[1])

    def text(self) -> str:
        """Return the imports and the definitions."""
        imports = sorted({taken for taken in self.taken.values() if isinstance(taken, str)})
        plain = [line for line in imports if line.startswith("import ")]
        parts = ["\n".join([*plain, *(line for line in imports if line not in plain)])]
        for module in TopologicalSorter(self.edges).static_order():
            if module in self.extra:
                parts.append(self.extra[module].rstrip())
            source = self.modules.get(module)
            if source is None:
                continue
            kept = self.needed.get(module, [])
            parts += [
                self._segment(module, source, statement)
                for statement in source.tree.body
                if statement in kept
            ]
        return "\n\n\n".join(parts) + "\n"

    def _module(self, name: str) -> Module:
        if name not in self.modules:
            self.modules[name] = Module.read(name)
            self.edges.setdefault(name, set())
        return self.modules[name]

    def _use(self, module: str, source: Module, name: str) -> None:
        if name in source.others:
            statement = source.others[name]
            found = self.taken.setdefault(name, statement)
            assert found == statement, f"{name} is {found} and {statement}"
        elif name in source.ours:
            place = self.need(*source.ours[name])
            self.edges[module].add(place[0])
        elif name in source.definitions:
            self.need(module, name)

    def _take(self, place: Place) -> None:
        module, name = place
        if self.taken.setdefault(name, place) != place:
            self.renamed[place] = f"{name}_{module.rpartition('.')[2]}"
            self.taken[self.renamed[place]] = place

    def _segment(self, module: str, source: Module, statement: ast.stmt) -> str:
        """Return a definition's text, with plain annotations and final names."""
        lines = source.text.encode().split(b"\n")
        first = min([statement.lineno, *(d.lineno for d in _decorators(statement))])
        last = statement.end_lineno or statement.lineno
        changes: list[tuple[ast.expr, bytes]] = [(n, b"Tensor") for n in _shapes(statement)]
        inside = {id(part) for node, _ in changes for part in ast.walk(node)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and id(node) not in inside:
                place = source.ours.get(node.id, (module, node.id))
                new = self.final(self._home(place))
                if new != node.id:
                    changes.append((node, new.encode()))
        for node, text in sorted(changes, key=lambda c: (c[0].lineno, c[0].col_offset))[::-1]:
            _replace(lines, node, text)
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            new = self.renamed.get((module, statement.name), statement.name)
            head = lines[statement.lineno - 1]
            lines[statement.lineno - 1] = head.replace(statement.name.encode(), new.encode(), 1)
        kept = [line for line in lines[first - 1 : last] if line is not None]
        comment = _docstring_after(source.tree, statement)
        if comment is not None:
            kept += lines[comment.lineno - 1 : comment.end_lineno]
        return EXAMPLE.sub("", b"\n".join(kept).decode())

    def _home(self, place: Place) -> Place:
        """Return where a name that may be imported again is defined."""
        while place[0] in self.modules and place[1] in self.modules[place[0]].ours:
            place = self.modules[place[0]].ours[place[1]]
        return place


def _imported(name: str) -> ModuleType:
    return sys.modules[name] if name.startswith(PREFIX) else importlib.import_module(name)


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _used(statement: ast.stmt) -> set[str]:
    """Return the names that a definition uses, shape annotations aside."""
    inside = {id(part) for node in _shapes(statement) for part in ast.walk(node)}
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and id(node) not in inside
    }
    names |= {"Tensor"} if inside else set()
    quoted = [
        node.value
        for part in ast.walk(statement)
        for node in [getattr(part, "annotation", None) or getattr(part, "returns", None)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return names | {text for text in quoted if text.isidentifier()}


def _shapes(statement: ast.stmt) -> Iterator[ast.Subscript]:
    """Yield jaxtyping annotations, such as Float[Tensor, "b t"]."""
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"Float", "Int", "Bool"}
        ):
            yield node


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return getattr(statement, "decorator_list", [])


def _docstring_after(tree: ast.Module, statement: ast.stmt) -> ast.Expr | None:
    """Return the string that documents an assignment."""
    place = tree.body.index(statement) + 1
    following = tree.body[place] if place < len(tree.body) else None
    if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
        return following
    return None


def _replace(lines: list[bytes], node: ast.expr, text: bytes) -> None:
    """Replace a node's text; an annotation over several lines becomes one line."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    end = lines[last][node.end_col_offset :]
    lines[first] = lines[first][: node.col_offset] + text + end
    for number in range(first + 1, last + 1):
        lines[number] = None  # type: ignore[call-overload]
