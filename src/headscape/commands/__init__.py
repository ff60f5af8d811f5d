"""The commands of the command line, one file each; REGISTER is their order in the help."""

from collections.abc import Callable

import typer

from headscape.commands import (
    capture,
    check,
    doctor,
    draw,
    encodings,
    evaluate,
    figures,
    generate,
    measure,
    train,
)

REGISTER: tuple[Callable[[typer.Typer], None], ...] = (
    figures.register,
    encodings.register,
    train.register,
    generate.register,
    capture.register,
    draw.register,
    measure.register,
    evaluate.register,
    check.register,
    doctor.register,
)
