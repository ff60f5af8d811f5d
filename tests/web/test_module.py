"""The viewer's committed module: small enough, fit for a page, and the one its source gives."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIEWER = ROOT / "web"
STATIC = ROOT / "src/headscape/viewer/static"
LIMIT = 250_000


def module() -> str:
    return (STATIC / "viewer.js").read_text("utf-8")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources beside a copy of the module, with the pinned tools."""
    if shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    root = tmp_path_factory.mktemp("checkout")
    skipped = shutil.ignore_patterns("node_modules", "build")
    copy = Path(shutil.copytree(VIEWER, root / "web", ignore=skipped))
    static = root / "src/headscape/viewer/static"
    static.mkdir(parents=True)
    (static / "viewer.js").write_text(module(), "utf-8")
    if (VIEWER / "node_modules").is_dir():
        (copy / "node_modules").symlink_to(VIEWER / "node_modules")
        return copy
    found = run(copy, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund")
    if found.returncode:
        pytest.skip(f"npm install failed, perhaps without network: {found.stderr.strip()[-200:]}")
    return copy


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["npm", *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_module_is_small() -> None:
    assert 50_000 < len(module().encode()) <= LIMIT


def test_the_module_can_stand_in_a_page() -> None:
    text = module()
    assert "</script" not in text.lower()
    assert "<!--" not in text
    assert "openPage" in text.rsplit("export{", 1)[1]


def test_the_module_names_no_address_of_the_network() -> None:
    for scheme in ("http:", "https:", "ws:", "wss:"):
        found = module().replace("http://www.w3.org/2000/svg", "")
        assert f"{scheme}//" not in found


def test_the_module_is_what_its_source_gives(workspace: Path) -> None:
    found = run(workspace, "run", "compare")
    assert found.returncode == 0, found.stderr


def test_a_changed_source_is_noticed(workspace: Path) -> None:
    path = workspace / "src/core/text.ts"
    before = path.read_text("utf-8")
    path.write_text(before.replace("“", "«"), "utf-8")
    try:
        found = run(workspace, "run", "compare")
    finally:
        path.write_text(before, "utf-8")
    assert found.returncode != 0
    assert "differs from its source" in found.stderr


def test_types_and_kernel(workspace: Path) -> None:
    for script in ("check", "test"):
        found = run(workspace, "run", script)
        assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
