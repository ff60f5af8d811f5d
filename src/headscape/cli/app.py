"""The `headscape` command.

Every file beside this one is imported, and its functions marked with `@command()` are commands
(command.py). A command imports what it needs when it runs, so that `headscape --help` is quick. A
user's mistake is one sentence on stderr and exit code 2; a warning is one sentence on stderr.
Results go to stdout, progress to stderr.
"""

import codecs
import importlib
import io
import os
import pkgutil
import signal
import sys
import warnings
from typing import Annotated

import typer

from headscape import __version__, cli
from headscape.cli.command import COMMANDS, Command
from headscape.errors import InputError, memory_sentence, out_of_memory
from headscape.io.child_process import repeat_lost_interrupts
from headscape.io.terminal import one_line, say

FIRST = (
    "figures", "encodings", "train", "generate", "capture", "draw", "measure", "atlas", "card",
    "view", "evaluate", "compare", "diagnose", "adapt", "export", "fetch",
    "check", "doctor",
)  # fmt: skip
"""The order of the help; other commands come after these."""
START = """\
Headscape shows, trains and measures what position does in every attention head of a transformer.

See what position is in a model, from its config alone:
  headscape card hf:Qwen/Qwen3-0.6B
Look at every head of a model, in the browser:
  headscape fetch smollm2
  headscape view hf:smollm2 --prompt "The cat sat on the mat"
Find out why it breaks past its context, and what mends it:
  headscape diagnose hf:smollm2 --length 12288 --text book.txt --quick
Draw heads for a paper:
  headscape capture hf:smollm2 --prompt "The cat sat" --out cat.safetensors
  headscape draw cat.safetensors --out figure.pdf
Train a small model with any position encoding, and score it at longer lengths:
  headscape train --encoding cable --out runs/cable
  headscape evaluate runs/cable --lengths 512,1024,2048

`headscape --help` lists all commands, `headscape COMMAND --help` explains one.
`headscape --install-completion` completes commands and options in your shell."""
"""What `headscape` alone prints."""
SPIN_COUNT = "3000"
"""Iterations for which an OpenMP thread that waits spins before it sleeps;
docs/measured/training.md has what other values cost on idle and on busy cores."""


def make_app() -> typer.Typer:
    """Return the command line with every command of the files beside this one."""
    for file in pkgutil.iter_modules(cli.__path__):
        if file.name not in {"app", "__main__"}:
            importlib.import_module(f"{cli.__name__}.{file.name}")
    made = typer.Typer(
        name="headscape",
        help="Show, train and measure what position does in every attention head of a transformer.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in sorted(COMMANDS, key=lambda name: (*FIRST, name).index(name)):
        made.command(name, cls=Command)(COMMANDS[name])
    return made


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"headscape {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=lambda value: _version(wanted=value),
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Show, train and measure what position does in every attention head of a transformer."""
    if context.invoked_subcommand is None:
        typer.echo(START)


app = make_app()


def main() -> None:
    """Run the command line; turn a user's mistake into a sentence."""
    warnings.showwarning = _warn
    _limit_spinning()
    _accept_any_text()
    repeat_lost_interrupts(signal.SIGINT)
    try:
        app()
    except InputError as error:
        text = one_line(str(error))
        # A message of the library names no flag.
        flag = " Here that is --plugin FILE." if "as a plugin" in text else ""
        _say("error: ", "red", text + flag)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say("error: ", "red", one_line(f"{where}{error.strerror or error}."))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _say("error: ", "red", memory_sentence(error))
        sys.exit(2)
    except SystemExit as stop:
        # Typer turns Ctrl-C into exit code 130 and prints nothing.
        if isinstance(getattr(stop.__context__, "__cause__", None), KeyboardInterrupt):
            typer.echo("stopped; repeat the command to go on.", err=True)
        raise


def _limit_spinning() -> None:
    """Let OpenMP threads that wait give up their core soon, unless the user has chosen otherwise.

    libgomp, which torch and the native kernels share, spins 300,000 times by default. Where other
    processes need the cores, a thread then spends its time slices waiting for one that is not
    running. libgomp reads the variable when torch loads it; child processes inherit it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _accept_any_text() -> None:
    """Let a stream that is not UTF-8 print any text: paths as they are, ? for other characters."""

    def handle(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        code = ord(error.object[error.start])
        found: str | bytes = bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else "?"
        return found, error.start + 1

    codecs.register_error("headscape", handle)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="headscape")


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    _say("warning: ", "yellow", str(message))


def _say(label: str, colour: str, text: str) -> None:
    typer.secho(label, fg=colour, bold=True, err=True, nl=False)
    say(text, err=True)
