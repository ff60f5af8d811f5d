"""A command line in this process, and one small run to work on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headscape.cli.app import app, main

Call = Callable[..., Any]


@pytest.fixture
def call() -> Call:
    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture
def refuses(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Whether the command line in sys.argv is refused in one sentence that says this."""

    def run(message: str) -> None:
        with pytest.raises(SystemExit) as stop:
            main()
        said = capfd.readouterr().err
        assert stop.value.code == 2
        assert message in said
        assert said.startswith("error: ")
        assert len(said.strip().splitlines()) == 1

    return run


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(cache))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Eight steps of a nano CABLE on a text of its own."""
    folder = tmp_path_factory.mktemp("small")
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} of {n % 7} things and {n % 11} more\n" for n in range(2000)))
    words = ["train", "--encoding", "cable", "--corpus", text, "--tokenizer", "bytes"]
    words += ["--context-length", 32, "--batch-size", 2, "--steps", 8, "--checkpoint-every", 4]
    words += ["--keep-every", 4, "--out", folder / "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(cache))
        result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return folder / "run"
