"""How a function becomes a command of `headscape`.

`@command()` takes it as it stands: its name is the command's, arguments before the star stay
arguments and those behind it are options, the docstring is the help, its "Args:" explain them, and
its "Examples:" end the help as they stand.
`Annotated[..., typer.Option(...)]` says what neither can, such as a different name. Every command
has --plugin.

`@command(fields=...)` adds an option for every field of some dataclasses, with the docstring below
the field as its help. They are made when the command runs, because a dataclass may import torch.

A list is written with commas or spaces, and an option may be repeated: `--lengths 512,1024`,
`--lengths 512 1024` and `--lengths 512 --lengths 1024` mean the same. A value with a semicolon is
split at its semicolons only, so that schedules of layers can contain commas:
`--encodings "rope*3,nope; alibi"`.
"""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from headscape.errors import InputError

COMMANDS: dict[str, Callable[..., Any]] = {}
"""Every command by name."""
ONE_AT_A_TIME = ("--plugin", "--run", "--field", "--text")
"""Repeatable options that take one value each time: the next word is not a second value."""
FIELDS = "headscape.fields"
"""Where a command finds the values of its generated options, in `context.meta`."""

F = TypeVar("F", bound=Callable[..., Any])


def _load(paths: list[Path] | None) -> None:
    for path in paths or []:
        from headscape.encodings.registry import load_plugin

        load_plugin(path)


def _encoding_names(incomplete: str) -> list[str]:
    """Return the encodings whose name begins with what was typed."""
    from headscape.encodings import list_encodings

    return [row.name for row in list_encodings() if row.name.startswith(incomplete)]


COMPLETIONS = {"encoding": _encoding_names, "encodings": _encoding_names}
"""What a shell completes the values of an option or argument with, by its name."""
PLUGIN = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Python file with encodings of your own; repeatable.",
        callback=_load,
        is_eager=True,
        expose_value=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Fields of dataclasses that are options of a command."""

    classes: Sequence[type]
    """The dataclasses; names must differ."""
    defaults: Mapping[str, object]
    """The fields that become options, in order, with the value that the help shows; the option of
    a field that is MISSING its default is required."""
    label: str
    """What the help calls that value: [label: value]."""
    sections: Mapping[str, str]
    """Title of a section of the help, by the field that is first in it."""
    flags: Mapping[str, str]
    """Option names of fields that are not called like their field."""


def command(*, fields: Callable[[], Fields] | None = None) -> Callable[[F], F]:
    """Make a function a command; `fields` returns what its generated options are made from."""

    def register(function: F) -> F:
        text, examples, notes = _split_docstring(inspect.getdoc(function) or "")
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if hints[name] is not typer.Context:
                is_option = parameter.kind is parameter.KEYWORD_ONLY
                hints[name] = _explained(name, hints[name], notes.get(name), is_option=is_option)
        function.__doc__ = text
        function.__annotations__ = hints
        function.fields = fields  # type: ignore[attr-defined]
        function.examples = examples  # type: ignore[attr-defined]
        COMMANDS[function.__name__] = function
        return function

    return register


def _split_docstring(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Return a docstring's text, the lines of its "Examples:", and what its "Args:" say by name."""
    text, _, listed = text.partition("\n\nArgs:\n")
    text, _, examples = text.partition("\n\nExamples:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE)
    notes = {name: " ".join(words.split()) for name, words in entries}
    return text, textwrap.dedent(examples).splitlines(), notes


def _explained(name: str, hint: Any, note: str | None, *, is_option: bool) -> Any:
    """Return the annotation that typer reads: a type with an option or an argument."""
    if get_origin(hint) is Annotated:
        info = get_args(hint)[1]
        info.help = info.help or note
        return hint
    # A flag that is off by default has no --no- form.
    flag = ["--" + name.replace("_", "-")] if hint is bool else []
    complete = COMPLETIONS.get(name)
    if is_option:
        return Annotated[hint, typer.Option(*flag, help=note, autocompletion=complete)]
    return Annotated[hint, typer.Argument(help=note, autocompletion=complete)]


class Command(TyperCommand):
    """A command whose list options take several values, with commas or spaces."""

    @cached_property
    def generated(self) -> TyperCommand:
        """A command that has the generated options alone and returns their values."""
        make = getattr(self.callback, "fields", None)
        return _only_options([] if make is None else _options_of(make()))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return every argument and option, the generated ones included."""
        return [*super().get_params(ctx), *self.generated.params]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the values of generated options are in `context.meta[FIELDS]`."""
        assert self.generated.callback is not None
        names = [str(option.name) for option in self.generated.params if option.expose_value]
        values = {name: ctx.params.pop(name) for name in names}
        ctx.meta[FIELDS] = self.generated.callback(**values)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the help, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                is_argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", None) or "Options"
                sections.setdefault("Arguments" if is_argument else panel, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples at the end of the help, a line each."""
        if examples := getattr(self.callback, "examples", []):
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat a list option before each of its values."""
        lists = {
            name
            for item in self.get_params(ctx)
            if getattr(item, "multiple", False)
            for name in getattr(item, "opts", ())
        }
        out: list[str] = []
        option, taken = None, False
        for arg in args:
            name, equals, value = arg.partition("=")
            if arg == "--" or (arg.startswith("-") and arg != "-" and not _is_number(arg)):
                option = name if name in lists else None
                taken = False
                if option is None:
                    out.append(arg)
                elif equals:
                    out += _repeated(option, value)
                    taken = True
            elif option is None:
                out.append(arg)
            else:
                out += _repeated(option, arg)
                taken = True
                if option in ONE_AT_A_TIME:
                    option = None
        if option is not None and not taken:
            out.append(option)
        return super().parse_args(ctx, out)


def _options_of(fields: Fields) -> list[inspect.Parameter]:
    """Return the options for fields of dataclasses, as parameters of a function."""
    notes = {name: note for kind in fields.classes for name, note in docstrings(kind).items()}
    hints = {name: hint for kind in fields.classes for name, hint in get_type_hints(kind).items()}
    options = []
    section = None
    for name, default in fields.defaults.items():
        section = fields.sections.get(name, section)
        kind, metavar = _option_type(hints[name])
        shown = _shown(default)
        info = typer.Option(
            *([fields.flags[name]] if name in fields.flags else []),
            help=" ".join(notes[name].split()) + (f" [{fields.label}: {shown}]" if shown else ""),
            metavar=metavar,
            autocompletion=COMPLETIONS.get(name),
            rich_help_panel=section,
            show_default=False,
        )
        if default is MISSING:
            options.append(_option(name, Annotated[kind, info], inspect.Parameter.empty))
        else:
            options.append(_option(name, Annotated[kind | None, info], None))
    return options


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=hint)


def _only_options(options: Sequence[inspect.Parameter]) -> TyperCommand:
    """Return a command that has --plugin and these options and returns their values."""

    def values(**chosen: Any) -> dict[str, Any]:
        names = [option.name for option in options]
        return {name: None if chosen[name] in ([], ()) else chosen[name] for name in names}

    parameters = [_option("plugin", PLUGIN, None), *options]
    values.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    values.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(values)
    made = typer.main.get_command(app)
    assert isinstance(made, TyperCommand)
    return made


def _option_type(hint: Any) -> tuple[Any, str | None]:
    """Return the type of a field as an option, and what the help shows for its value."""
    if get_origin(hint) in {Union, types.UnionType}:
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is Literal:
        return str, "|".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]], None  # type: ignore[misc]
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return list[str], "NAME=VALUE"
    return hint, None


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, list | tuple):
        return ",".join(map(str, default))
    return "" if default in (None, MISSING, {}) else str(default)


def docstrings(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, which Python itself does not keep."""
    if kind is object:
        return {}
    assert kind.__base__ is not None
    notes = docstrings(kind.__base__)
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for field, note in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
        ):
            notes[field.target.id] = str(note.value.value)
    return notes


def _repeated(option: str, value: str) -> list[str]:
    if option in ONE_AT_A_TIME:
        parts = [value]
    elif ";" in value:
        parts = [part.strip() for part in value.split(";") if part.strip()]
    elif option == "--encodings" and "," in value and {"*", ":"} & set(value):
        raise InputError(
            f"--encodings {value!r} may be one schedule of layers or several encodings: separate "
            f"encodings by semicolons, as in '{value};' for one schedule."
        )
    else:
        parts = value.replace(",", " ").split()
    if not parts:
        raise InputError(f"{option} is empty: give it at least one value, or leave it out.")
    return [word for part in parts for word in (option, part)]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
