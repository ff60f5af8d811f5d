"""The commands of the command line, one file each; REGISTER is their order in the help."""

from collections.abc import Callable

import typer

from headscape.commands import (
    atlas_command,
    capture_command,
    check_command,
    doctor_command,
    draw_command,
    encodings_command,
    evaluate_command,
    export_command,
    figures_command,
    generate_command,
    measure_command,
    train_command,
    view_command,
)

REGISTER: tuple[Callable[[typer.Typer], None], ...] = (
    figures_command.register,
    encodings_command.register,
    train_command.register,
    generate_command.register,
    capture_command.register,
    draw_command.register,
    measure_command.register,
    atlas_command.register,
    view_command.register,
    evaluate_command.register,
    export_command.register,
    check_command.register,
    doctor_command.register,
)
