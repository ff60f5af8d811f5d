"""Every encoding exported, opened by transformers in a fresh process, and read back."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import headscape as hs
from headscape.gpt2 import generate
from headscape.huggingface.export import write_export as export_module
from huggingface.export_cases import CASES, SCRIPT, STOCK, case_model

pytestmark = pytest.mark.xdist_group("export")  # one worker exports, once
Found = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export per case, with code where it is our own class; pictures are tested elsewhere."""
    home = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "write_picture", lambda model, part: None)
        for name in CASES:
            model = hs.load(case_model(name), tokenizer="bytes")
            hs.export(model, home / _folder(name), with_code=name not in STOCK)
    return home


def _folder(name: str) -> str:
    return name.replace(" ", "_").replace("+", "_").replace("-", "_")


def _opened(home: Path, form: str, names: list[str]) -> Found:
    """What a fresh process computes with the exports, by folder."""
    generator = torch.Generator().manual_seed(1)
    save_file(
        {
            "tokens": torch.randint(256, (2, 40), generator=generator),
            "prompt": torch.randint(256, (2, 9), generator=generator),
        },
        home / "given.safetensors",
    )
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-c", SCRIPT, form, home / "given.safetensors",
            home / f"{form}.safetensors", *(home / _folder(name) for name in names),
        ],
        capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HOME": str(home / "hf"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Found = {}
    for key, value in load_file(home / f"{form}.safetensors").items():
        name, kind, what = key.split("/")
        found.setdefault(name, {"kind": torch.tensor([*kind.encode()])})[what] = value
    return found


@pytest.fixture(scope="session")
def installed(folders: Path) -> Found:
    return _opened(folders, "installed", list(CASES))


@pytest.fixture(scope="session")
def coded(folders: Path) -> Found:
    return _opened(folders, "code", [name for name in CASES if name not in STOCK])


def _check(name: str, home: Path, found: dict[str, Tensor], kind: str) -> None:
    model, given = case_model(name), load_file(home / "given.safetensors")
    assert bytes(found["kind"].tolist()).decode() == kind
    with torch.no_grad():
        assert (found["logits"] - model(given["tokens"])).abs().max() < 1e-5
        assert (found["padded"] - model(given["prompt"])).abs().max() < 1e-5
    written = generate(model, given["prompt"], length=12, temperature=0)
    assert torch.equal(found["written"], written)
    assert torch.equal(found["padded written"], written)


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_process_computes_the_same(name: str, folders: Path, installed: Found) -> None:
    _check(name, folders, installed[_folder(name)], STOCK.get(name, "HeadscapeForCausalLM"))


@pytest.mark.parametrize("name", [name for name in CASES if name not in STOCK])
def test_the_code_needs_no_headscape(name: str, folders: Path, coded: Found) -> None:
    _check(name, folders, coded[_folder(name)], "HeadscapeForCausalLM")
    code = (folders / _folder(name) / "modeling_headscape.py").read_text()
    assert "import headscape" not in code
    needs = {name.partition(".")[0] for name in imported(ast.parse(code))}
    assert needs - sys.stdlib_module_names == {"torch", "transformers"}


def imported(tree: ast.Module) -> list[str]:
    found = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    return found + [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("prefix", ["", "hf:"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_read_back_bit_for_bit(name: str, prefix: str, folders: Path) -> None:
    model = hs.load(case_model(name), tokenizer="bytes")
    back = hs.load(f"{prefix}{folders / _folder(name)}")
    assert back.fingerprint == model.fingerprint
    assert back.spec == model.spec
    assert back.tokenizer is not None
    assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
    ours, theirs = model.gpt2.tensors(), back.gpt2.tensors()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
