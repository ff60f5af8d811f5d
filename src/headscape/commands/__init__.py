"""The commands of the command line, one file each; REGISTER is their order in the help."""

from collections.abc import Callable

import typer

from headscape.commands import capture, doctor, draw, encodings, evaluate, figures, generate, train

REGISTER: tuple[Callable[[typer.Typer], None], ...] = (
    encodings.register,
    figures.register,
    train.register,
    generate.register,
    capture.register,
    draw.register,
    evaluate.register,
    doctor.register,
)
