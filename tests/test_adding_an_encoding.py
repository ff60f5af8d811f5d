"""docs/adding-an-encoding.md, done as it says: the file, the plugin, the properties, the line."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from headscape.call import definition
from headscape.call.positions import Positions
from headscape.encodings import ENCODINGS, Encoding, build, list_encodings, load_plugin, title
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.kernels.assemble import prepare
from headscape.properties import PROPERTIES, check
from headscape.properties.cases import factory
from headscape.properties.probe import TRAINED, draw, randomise

DOCUMENT = Path(__file__).parents[1] / "docs" / "adding-an-encoding.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
FILE, PLUGIN, CHECK, LINE, MIXES = BLOCKS


@pytest.fixture
def gaussian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Encoding]]:
    """The document's encoding, registered for the time of a test."""
    (tmp_path / "gaussian.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert load_plugin("gaussian.py") == ["gaussian"]
    yield ENCODINGS["gaussian"]
    del ENCODINGS["gaussian"]


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("encoding", ["gaussian", "dapev2+gaussian"])
@pytest.mark.usefixtures("gaussian")
def test_it_has_every_property(encoding: str, name: str) -> None:
    for heads, length in ((1, 1), (12, 2), (3, 2 * TRAINED + 5)):
        PROPERTIES[name](factory(encoding), heads, length)


@pytest.mark.usefixtures("gaussian")
def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    variables: dict[str, object] = {}
    exec(PLUGIN, variables)  # noqa: S102
    assert variables["window"].config.sigma == 8.0
    exec(CHECK, variables)  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(PROPERTIES)
    assert all(line.startswith("passed  ") for line in printed), printed


@pytest.mark.usefixtures("gaussian")
def test_it_is_its_formula() -> None:
    encoding = build("gaussian", heads=3, head_dim=4, width=12, train_length=8).double()
    assert encoding.log_sigma.exp().tolist() == pytest.approx([16.0] * 3, rel=1e-6)
    randomise(encoding)
    q, k, v = (draw(1, 3, 20, 4, seed=seed) for seed in (1, 2, 3))
    with torch.no_grad():
        found = definition.scores(prepare(encoding, q, k, v, None, Positions.span(20)))
    sigma = np.exp(encoding.log_sigma.detach().numpy())
    for i in range(20):
        for j in range(i + 1):
            expected = -((i - j) ** 2) / (2 * sigma**2)
            np.testing.assert_allclose(found.bias[0, :, i, j].numpy(), expected, rtol=1e-9)


@pytest.mark.usefixtures("gaussian")
def test_it_is_in_the_table_and_trains() -> None:
    with pytest.raises(InputError, match=r"'gausian': did you mean 'gaussian'"):
        build("gausian", heads=1, head_dim=4, width=4, train_length=8)
    with pytest.raises(InputError, match=r"sigma must be above 0, got -1\.0"):
        build("gaussian", heads=1, head_dim=4, width=4, train_length=8, sigma=-1.0)
    assert title("dape+gaussian") == "DAPE+Gaussian window"
    (row,) = [row for row in list_encodings() if row.name == "gaussian"]
    assert (row.parameters, row.letters) == (12, "STP-")
    model = GPT2(
        ModelConfig(layers=1, heads=2, width=8, vocabulary=9, train_length=8, encoding="gaussian")
    )
    model(torch.randint(9, (1, 8))).square().sum().backward()
    assert model.encoding().log_sigma.grad.all()


def test_its_line_is_a_row_of_the_table(gaussian: type[Encoding]) -> None:
    entry = re.fullmatch(r'    "([\w-]+)": (\w+),\n', LINE)
    assert entry
    assert (entry[1], entry[2]) == ("gaussian", gaussian.__name__)
    source = (DOCUMENT.parents[1] / "src" / "headscape" / "encodings" / "registry.py").read_text()
    assert re.search(r'^    "alibi": ALiBi,\n', source, re.MULTILINE), "rows look like this"


def test_its_command_is_real() -> None:
    (command,) = re.findall(r"-m pytest (\S+) -k gaussian", DOCUMENT.read_text())
    assert (DOCUMENT.parents[1] / command / "test_properties.py").is_file()


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[type[Encoding]]:
    """The document's encoding that mixes, registered for the time of a test."""
    (tmp_path / "talking.py").write_text(MIXES)
    assert load_plugin(tmp_path / "talking.py") == ["talking"]
    yield ENCODINGS["talking"]
    del ENCODINGS["talking"]


@pytest.mark.usefixtures("talking")
def test_one_that_mixes_has_every_property() -> None:
    results = check("talking", sizes=((1, 1), (12, 2), (3, 2 * TRAINED + 5)))
    assert len(results) == len(PROPERTIES)
    assert all(result.passed for result in results), "\n".join(map(str, results))


@pytest.mark.usefixtures("talking")
def test_one_that_mixes_is_its_formula() -> None:
    encoding = build("talking", heads=3, head_dim=4, width=12).double()
    randomise(encoding)
    q, k, v = (draw(1, 3, 20, 4, seed=seed) for seed in (1, 2, 3))
    with torch.no_grad():
        found = definition.scores(prepare(encoding, q, k, v, None, Positions.span(20)))
    content = (q.numpy() @ k.numpy().swapaxes(2, 3)) / 2
    weight = encoding.weight.detach().numpy()
    for head in range(3):
        expected = sum(weight[head, other] * content[0, other] for other in range(3))
        np.testing.assert_allclose(found.final[0, head].numpy(), expected, rtol=1e-9)
