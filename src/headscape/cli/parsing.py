"""How every command reads its options: lists, layers and heads, plugins, options that do not apply.

A list is written with commas or spaces, and an option may be repeated: `--lengths 512,1024`,
`--lengths 512 1024` and `--lengths 512 --lengths 1024` mean the same. A value with a semicolon is
split at its semicolons only, so that schedules of layers can contain commas:
`--encodings "rope*3,nope; alibi"`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headscape.errors import InputError
from headscape.io.atomic import utf8

MOST = 100_000
"""Largest layer or head number that is accepted."""
LONGEST = 20
"""Most digits of a number; Python refuses to convert more than 4,300."""


class Command(TyperCommand):
    """A command whose list options take several values, with commas or spaces."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat a list option before each of its values."""
        lists = {
            name
            for item in self.params
            if getattr(item, "multiple", False)
            for name in getattr(item, "opts", ())
        }
        out: list[str] = []
        option, taken = None, False
        for arg in args:
            name, equals, value = arg.partition("=")
            if arg == "--" or (arg.startswith("-") and not _is_number(arg)):
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


ONE_AT_A_TIME = ("--plugin", "--run", "--field")
"""Repeatable options that take one value each time: the next word is not a second value."""


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse_unused(
    context: typer.Context, used: Iterable[str], options: Iterable[str], by: str
) -> None:
    """Refuse options that were given and that `by` does not use."""
    for name in options:
        if name not in set(used) and given(context, name):
            raise InputError(f"{by} does not use --{name.replace('_', '-')}: leave it out.")


def numbers(words: "list[str] | None", what: str) -> "str | list[int]":
    """Layers or heads as written: all, last, or numbers from 1 such as 1 3 5-8."""
    if not words:
        return "all"
    if words in (["all"], ["last"]):
        return words[0]
    found: list[int] = []
    for word in words:
        low, dash, high = word.partition("-")
        if not _is_count(low) or (dash and not _is_count(high)):
            raise InputError(f"{what}s {word!r}: write all, last, or numbers such as 1,3,5-8.")
        first, last = int(low), int(high or low)
        if first == 0:
            raise InputError(f"{what}s {word!r}: {what}s count from 1 on the command line.")
        if not 1 <= first <= last <= MOST:
            raise InputError(f"{what}s {word!r}: a range must go up, within 1 to {MOST}.")
        found += range(first, last + 1)
    return found


def as_text(prompt: str) -> str:
    """A text from the command line, also where the locale is not UTF-8."""
    return utf8(prompt).decode("utf-8", "replace")


def read_text(file: str | None) -> str | None:
    """Return the text of a file; - is standard input."""
    if file is None:
        return None
    if file == "-":
        return sys.stdin.read()
    if not Path(file).is_file():
        raise InputError(f"there is no file {file}.")
    from headscape.data.corpus.reading import read_documents

    return "".join(part.text for part in read_documents(Path(file), Path(file).name))


def chosen_text(prompt: str | None, file: str | None) -> str | None:
    """Return the text of --prompt or --text; None where neither is given."""
    if prompt is not None and file is not None:
        raise InputError(f"give --prompt or --text {file}, not both.")
    return read_text(file) if prompt is None else as_text(prompt)


def from_zero(words: "list[str] | None", count: int, what: str) -> "tuple[int, ...]":
    """Indices from 0 of layers or heads that the command line counts from 1."""
    from headscape.captures.record import indices

    return indices(numbers(words, what), count, what, first=1)


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


def _is_count(word: str) -> bool:
    return word.isdecimal() and len(word) <= LONGEST


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _load(paths: "list[Path] | None") -> "list[Path] | None":
    for path in paths or []:
        from headscape.encodings.registry import load_plugin

        load_plugin(path)
    return paths


Prompt = Annotated[str | None, typer.Option("--prompt", help="Read this text.")]
TextFile = Annotated[
    str | None, typer.Option("--text", help="Read a text file; - is standard input.")
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with encodings of your own; repeatable.",
        callback=_load,
        is_eager=True,
    ),
]
