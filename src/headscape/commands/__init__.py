"""The commands of the command line, one file each; REGISTER is their order in the help."""

from collections.abc import Callable

import typer

from headscape.commands import encodings

REGISTER: tuple[Callable[[typer.Typer], None], ...] = (encodings.register,)
