"""The wheel: its tag and contents, and that it works alone, installed without the source tree.

The kernel is compiled without optimisation, which takes seconds; its numbers are the same.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = "headscape/kernels/native/kernels.so"
pytestmark = pytest.mark.xdist_group("wheel")  # one worker builds it, once


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" not in os.environ,
    reason="only pytest-xdist groups tests; make test runs them with it",
)
def test_workers_group_these_tests(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@wheel")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Return what a command prints; PYTHONPATH, which may name the source tree, is left out."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(source: Path, out: Path, *flags: str, **environment: str) -> Path:
    """Build the sdist, and the wheel from it unless flags say otherwise; return the wheel."""
    run(
        sys.executable, "-m", "build", "--no-isolation", *flags, "--outdir", out, source,
        cwd=out, **environment,
    )  # fmt: skip
    [wheel] = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this platform."""
    return built(ROOT, tmp_path_factory.mktemp("dist"), HEADSCAPE_CXXFLAGS="-O0")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an empty environment that has the wheel and sees the dependencies."""
    return environment(wheel, tmp_path_factory.mktemp("environment"))


def environment(wheel: Path, folder: Path) -> Path:
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=wheel.parent)
    run(
        sys.executable, "-m", "pip", "--python", folder / "bin" / "python",
        "install", "--no-deps", "--no-index", "--no-compile", wheel,
        cwd=folder,
    )  # fmt: skip
    # A folder named in a .pth file adds its packages but not its own .pth files, through which
    # the editable headscape would be found.
    [packages] = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(shared))
    return folder


def test_one_wheel_serves_every_python_of_the_platform(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")


def test_it_has_the_stripped_kernel_and_no_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert KERNEL in names
    assert "headscape/py.typed" in names
    assert not [name for name in names if name.endswith((".cpp", ".hpp"))]
    library = zipfile.ZipFile(wheel).read(KERNEL)
    assert b".symtab" not in library
    assert len(library) < 2_500_000


def test_the_sdist_has_what_a_build_needs(wheel: Path) -> None:
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    native = ROOT / "src/headscape/kernels/native"
    needed = {str(path.relative_to(ROOT)) for path in native.glob("*.?pp")}
    assert needed | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names


def test_it_draws_a_figure(installed: Path, tmp_path: Path) -> None:
    headscape = installed / "bin" / "headscape"
    words = ("--encodings", "alibi", "--untrained", "--length", "64", "--processes", "1")
    run(headscape, "figures", *words, cwd=tmp_path)
    assert (tmp_path / "figures/index.html").is_file()
    assert list((tmp_path / "figures").rglob("*.png"))


def test_its_own_kernel_passes_the_self_check(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "bin" / "headscape", "doctor", "--length", "16", cwd=tmp_path)
    [kernel] = installed.glob(f"lib/python*/site-packages/{KERNEL}")
    assert str(kernel) in said
    assert "self-check: agrees with the reference" in said


def test_without_a_compiler_it_is_pure_and_says_so(wheel: Path, tmp_path: Path) -> None:
    [sdist] = wheel.parent.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    pure = built(source, tmp_path, "--wheel", CC="/no/compiler", CXX="/no/compiler")
    assert pure.name.endswith("-py3-none-any.whl")
    folder = environment(pure, tmp_path / "environment")
    said = run(folder / "bin" / "headscape", "doctor", "--length", "16", cwd=tmp_path)
    assert "native kernel: no, the native kernels were not built" in said
