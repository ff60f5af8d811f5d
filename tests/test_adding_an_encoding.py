"""docs/adding-an-encoding.md, done as it says: its file, its line, the laws, the numbers."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from headscape import encodings
from headscape.attention import reference
from headscape.encodings import ENCODINGS, Encoding, build
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.types import Positions
from properties import laws
from properties.layer import draw, layer, randomise
from properties.subjects import factory

DOCUMENT = Path(__file__).parents[1] / "docs" / "adding-an-encoding.md"
FILE, LINE = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def gaussian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Encoding]]:
    """The document's encoding, in the table for the time of a test."""
    path = tmp_path / "gaussian.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("headscape.encodings.gaussian", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    entry = re.fullmatch(r'\s*"([\w-]+)": (\w+),\n', LINE)
    assert entry, "the document's line is one row of the table"
    name, kind = entry[1], getattr(module, entry[2])
    monkeypatch.setattr(encodings, "ENCODINGS", {**ENCODINGS, name: kind})
    yield kind
    assert "gaussian" not in ENCODINGS


@pytest.mark.parametrize("law", laws.LAWS)
@pytest.mark.parametrize("name", ["gaussian", "dapev2+gaussian"])
@pytest.mark.usefixtures("gaussian")
def test_it_keeps_every_law(name: str, law: str) -> None:
    for heads, length in ((1, 1), (12, 2), (3, 2 * laws.TRAINED + 5)):
        laws.LAWS[law](factory(name), heads, length)


@pytest.mark.usefixtures("gaussian")
def test_it_is_its_formula() -> None:
    encoding = build("gaussian", heads=3, head_dim=4, width=12, train_length=8).double()
    assert encoding.log_sigma.exp().tolist() == pytest.approx([16.0] * 3, rel=1e-6)
    randomise(encoding)
    q, k, v = (draw(1, 3, 20, 4, seed=seed) for seed in (1, 2, 3))
    with torch.no_grad():
        found = reference.scores(layer(encoding, q, k, v, None, Positions.span(20)))
    sigma = np.exp(encoding.log_sigma.detach().numpy())
    for i in range(20):
        for j in range(i + 1):
            expected = -((i - j) ** 2) / (2 * sigma**2)
            np.testing.assert_allclose(found.bias[0, :, i, j].numpy(), expected, rtol=1e-9)


@pytest.mark.usefixtures("gaussian")
def test_it_is_known_by_name_and_trains() -> None:
    with pytest.raises(InputError, match=r"'gausian': there are gaussian, "):
        build("gausian", heads=1, head_dim=4, width=4, train_length=8)
    with pytest.raises(InputError, match=r"sigma must be above 0, not -1\.0"):
        build("gaussian", heads=1, head_dim=4, width=4, train_length=8, sigma=-1.0)
    model = GPT2(
        ModelConfig(layers=1, heads=2, width=8, vocabulary=9, train_length=8, encoding="gaussian")
    )
    model(torch.randint(9, (1, 8))).square().sum().backward()
    assert model.encoding().log_sigma.grad.all()


def test_its_command_is_real() -> None:
    (command,) = re.findall(r"-m pytest (\S+) -k gaussian", DOCUMENT.read_text())
    assert (DOCUMENT.parents[1] / command / "test_laws.py").is_file()
