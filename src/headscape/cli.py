"""The `headscape` command.

Every command lives in a file of its own under commands/ and imports what it needs when it runs,
so that `headscape --help` is quick. A user's mistake is one sentence on stderr and exit code 2; a
warning is one sentence on stderr.
"""

import sys
import warnings

import typer

from headscape.commands import REGISTER
from headscape.errors import InputError

app = typer.Typer(
    name="headscape",
    help="Show, train and measure what position does in every attention head of a transformer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for register in REGISTER:
    register(app)


def main() -> None:
    """Run the command line; turn a user's mistake into a sentence."""
    warnings.showwarning = _warn
    try:
        app()
    except InputError as error:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped.", err=True)
        sys.exit(130)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    typer.secho("warning: ", fg="yellow", bold=True, err=True, nl=False)
    typer.echo(str(message), err=True)


if __name__ == "__main__":
    main()
