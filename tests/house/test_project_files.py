"""The files around the package say the same: version, licence, commands."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import headscape
from contributing import shown
from headscape.kernels.native import adapter
from headscape.measures import MEASURES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def citation() -> dict[str, object]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def made(target: str) -> str:
    """What make would run for a target."""
    command = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_citation_is_of_this_version() -> None:
    found = citation()
    for key in ("cff-version", "message", "title", "authors"):  # what the format requires
        assert found[key], key
    assert PROJECT["dynamic"] == ["version"]
    assert found["version"] == headscape.__version__
    assert found["license"] == PROJECT["license"]


def test_the_changelog_has_this_version_or_what_it_will_contain() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headscape.__version__ in text


def test_the_workflow_and_ci_run_the_readmes_test_command() -> None:
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    job = workflow["jobs"]["test"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    runs = {step.get("if"): step["run"] for step in job["steps"] if "run" in step}
    assert runs[f"matrix.python != '{oldest}'"] == "make test"
    assert runs[f"matrix.python == '{oldest}'"].splitlines()[-1] == ".ci/run"
    pythons = job["strategy"]["matrix"]["python"]
    assert pythons[0] == oldest
    assert pythons == re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    run = (ROOT / ".ci/run").read_text()
    [parts] = re.findall(r"for part in (.+); do", run)
    assert parts.split()[0] == "test"
    assert 'make "$part"' in run
    for part in parts.split():
        assert re.search(rf"^{part}:", MAKEFILE, re.MULTILINE), part
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    for line in markers["ini_options"]["markers"]:
        [target] = re.findall(r"run by `make ([a-z-]+)`", line)
        assert f"-m {line.partition(':')[0]}" in made(target), line
        assert (target in parts.split()) == (target not in ("test-slow", "test-pretrained")), line


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_of_a_page_is_a_target(page: str) -> None:
    commands = re.findall(r"(?:^|`)make ([a-z-]+)(?:$|`)", (ROOT / page).read_text(), re.MULTILINE)
    assert commands
    for target in commands:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_every_target_can_be_made() -> None:
    phony = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    for target in " ".join(phony).split():
        assert made(target).strip(), target


def test_the_figures_do_not_install_the_test_tools() -> None:
    assert "['optional-dependencies']" not in made("figures")
    assert "['optional-dependencies']['test']" in made("test")


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_kernel_is_built_where_there_is_a_compiler() -> None:
    """Without it some 900 tests of the kernels are skipped."""
    assert adapter.available() is None


def test_wheels_are_built_by_a_whole_version_of_cibuildwheel() -> None:
    """A tag such as v3.2 may not exist, and may move."""
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text()
    versions = re.findall(r"pypa/cibuildwheel@(\S+)", workflow)
    assert versions
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", version) for version in versions)


def test_torch_is_pinned_by_the_constraints_alone() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in pins
    assert [one for one in PROJECT["dependencies"] if one.startswith("torch")] == ["torch>=2.6"]
    assert made("setup").count("--constraint constraints.txt") == 2


def test_the_measure_of_contributing_runs_and_the_tests_it_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) >= 5
    assert not [path for path in named if not (ROOT / path).is_file()]
    before = dict(MEASURES)
    try:
        exec(shown("A measure"), {})  # noqa: S102
        assert set(MEASURES) - set(before) == {"own_token"}
    finally:
        MEASURES.clear()
        MEASURES.update(before)


def test_every_block_of_contributing_is_run_by_a_test() -> None:
    titles = re.findall(r"^### (.+)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(titles) == 5
    for title in titles:
        assert shown(title)
        assert f'shown("{title}")' in tests, title
