"""The public names: frozen, documented, lazy, and every example runs."""

import ast
import doctest
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headscape as hs
from headscape.encodings import ENCODINGS

NAMES = {
    "Capture", "Card", "CardComparison", "CrossAttention", "Curves", "Decays", "Depths",
    "Diagnosis", "Difference", "Encoding", "EncodingRow", "GPT2", "Grid", "InputError", "Lengths",
    "Measures", "Model", "Overview", "Positions", "Row", "RunResult", "Table", "Watched",
    "__version__", "atlas", "attention", "bias", "build", "capture", "card", "compare", "decay",
    "diagnose", "evaluate", "export", "list_encodings", "load", "paper_figures", "register",
    "stretch", "train", "view", "watch",
}  # fmt: skip
RESULTS = {
    "Card": "card", "CardComparison": "card", "Difference": "compare", "EncodingRow":
    "list_encodings", "RunResult": "train", "Watched": "watch", "Lengths": "Table.plot", "Depths":
    "Table.plot", "Row": "Capture.row", "Overview": "Capture.overview", "CrossAttention":
    "Model.cross_attention", "Decays": "decay",
}  # fmt: skip
"""Classes without an example of their own, and the function that returns each."""
INTERNAL = {"Cell", "Column", "Pack", "Scale"}
"""Classes that public methods return for other parts of the package."""
SEVERAL = {"Capture": ("load",), "GPT2": ("from_preset",)}
"""Methods with an example of their own."""


def test_the_names_are_these() -> None:
    assert set(hs.__all__) == NAMES
    assert set(hs.API) == NAMES - {"__version__"}
    assert set(dir(hs)) == NAMES
    assert all(re.search(rf"\b{name}\b", hs.__doc__ or "") for name in hs.API)


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_a_name_is_documented_and_its_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    # The corpus `stdlib`, cut to a few modules: encoding all of it takes seconds.
    monkeypatch.setattr(sys, "stdlib_module_names", {"email", "http", "json", "logging", "xml"})
    found = getattr(hs, name)
    assert inspect.getdoc(found)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    documented = [found, *(getattr(found, part) for part in SEVERAL.get(name, ()))]
    examples = 0
    for item in documented:
        test = parser.get_doctest(inspect.getdoc(item) or "", {}, name, None, 0)
        examples += len(test.examples)
        runner.run(test)
    ENCODINGS.pop("nothing", None)  # registered by the example of `register`
    assert examples or name in RESULTS, f"{name} has no example"
    assert runner.summarize(verbose=False).failed == 0


def callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Public functions, and the public methods that a public class defines."""
    for name in hs.API:
        found = getattr(hs, name)
        if not inspect.isclass(found):
            yield name, found
            continue
        for key, value in vars(found).items():
            function = getattr(value, "__func__", value)
            if not key.startswith("_") and inspect.isfunction(function):
                yield f"{name}.{key}", function


def test_what_they_return_is_public_and_typed() -> None:
    root = Path(hs.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")]
    classes = {item.name for tree in trees for item in tree.body if isinstance(item, ast.ClassDef)}
    public = {getattr(hs, name).__name__ for name in hs.API} | {*hs.API} | INTERNAL
    returned = {
        name: {*re.findall(r"\w+", str(function.__annotations__["return"]))} & classes
        for name, function in callables()
        if not name.startswith("Encoding.")  # returns the values of headscape.call
    }
    assert {name: found - public for name, found in returned.items() if found - public} == {}
    for name, function in RESULTS.items():
        assert name in returned[function]
    functions = NAMES & set(returned)
    assert [n for n in functions if getattr(hs, n).__annotations__["return"] is Any] == []


def missing(function: Callable[..., object]) -> list[str]:
    """The parameters that a docstring does not list, if there are two or more."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    listed = re.findall(r"^ +\*{0,2}(\w+): ", function.__doc__ or "", re.MULTILINE)
    return [name for name in names if name not in listed] if len(names) > 1 else []


@pytest.mark.parametrize(
    "function",
    [pytest.param(found, id=name) for name, found in callables()],
)
def test_every_argument_is_listed(function: Callable[..., object]) -> None:
    assert missing(function) == []


def test_a_missing_argument_is_noticed() -> None:
    def add(one: int, two: int) -> int:
        """Add.

        Args:
            one: The first.
        """
        return one + two

    assert missing(add) == ["two"]


def test_help_shows_what_a_model_can_do() -> None:
    for name in ("capture", "measures", "generate", "save", "observe", "losses"):
        assert name in pydoc.render_doc(getattr(hs.Model, name))
    model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
    assert isinstance(model, hs.Model)


def test_saving_returns_the_path(tmp_path: Path) -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
    assert gpt2.save_pretrained(str(tmp_path / "a")) == tmp_path / "a"
    assert hs.load(gpt2, tokenizer="bytes").save(str(tmp_path / "b")) == tmp_path / "b"
    assert (tmp_path / "a" / "model.safetensors").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        hs.lod  # noqa: B018


def test_no_folder_or_file_shares_a_name_with_a_public_function() -> None:
    root = Path(hs.__file__).parent
    units = {path.stem for path in root.iterdir() if path.suffix in {"", ".py"}}
    assert not units & set(hs.API)


def test_a_namespace_is_a_module_before_and_after_its_import() -> None:
    code = (
        "import headscape as hs; kind = type(hs.encodings).__name__; import headscape.encodings\n"
    )
    code += "import headscape.training.run, headscape.encodings as e; assert hs.encodings is e\n"
    code += "assert kind == 'module' and callable(hs.train) and e.Config"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_it_is_quick_and_loads_nothing_heavy() -> None:
    code = "import sys, headscape; heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers'}\n"
    code += "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hs.load(3),
            "a transformers model or a loaded model, got int",
        ),
        (lambda: hs.load("nowhere"), "nowhere"),
        (lambda: hs.load("hf:nowhere"), "nowhere"),
        (lambda: hs.Capture.load("nowhere.safetensors"), "nowhere.safetensors"),
        (lambda: hs.build("albi", heads=1, head_dim=8, width=8, train_length=8), "albi"),
        (lambda: hs.evaluate([]), "at least one model"),
    ],
)
def test_a_mistake_is_one_sentence(call, message) -> None:
    with pytest.raises(hs.InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
