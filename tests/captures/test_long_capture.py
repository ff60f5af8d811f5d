"""Maps reduced by the native kernels equal those that the dense definition gives."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from headscape.call.definition import AttentionCall
from headscape.captures import call_blocks, record
from headscape.captures.record import Request, capture
from headscape.captures.saved_call import SavedCall
from headscape.encodings import ENCODINGS
from headscape.gpt2 import GPT2, ModelConfig
from headscape.kernels.native import adapter, score_cells
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from headscape.models.loaded import LoadedModel
from headscape.properties.probe import randomise
from pretrained.families import FAMILIES, VOCABULARY

pytestmark = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
LENGTH = 90
DENSE = {"k-cable", "cope", "grid", "path", "wall"}
"""What the kernels do not serve: a bias given as a function, CoPE's mixing, transitions."""


def own(encoding: str) -> LoadedModel:
    config = ModelConfig(
        layers=1, heads=4, width=32, vocabulary=VOCABULARY, train_length=LENGTH, encoding=encoding
    )
    model = GPT2(config)
    randomise(model)
    return GPT2Model(model)


def compared(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, length: int = LENGTH, **options: object
) -> int:
    """Compare both ways; how many layers the native one took."""
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, length)
    spy = Mock(side_effect=score_cells.reduce_scores)
    monkeypatch.setattr(score_cells, "reduce_scores", spy)
    given = {"layers": "all", "resolution": 7, "window": (slice(30, 41), slice(20, 40)), **options}
    found = capture(model, tokens, **given)
    monkeypatch.setattr(score_cells, "refuses", lambda _: "asked not to")
    wanted = capture(model, tokens, **given)
    assert list(wanted.maps) == [name for name in wanted.maps if name in found.maps]
    assert len(found.maps) == len(wanted.maps)
    for name, values in wanted.maps.items():
        assert found.maps[name].dtype == np.float32
        size = max(1, np.nanmax(abs(values)))
        np.testing.assert_allclose(found.maps[name], values, rtol=0, atol=2e-5 * size, err_msg=name)
    return spy.call_count


@pytest.mark.parametrize("name", [*ENCODINGS, "dape+kerple", "dapev2+kerple", "alibi:window=20"])
def test_our_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(own(name), monkeypatch, heads=[3, 1]) == (name not in DENSE)


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "gemma2", "gpt-oss", "phi", "gptj", "bloom", "falcon", "t5"]
)
def test_published_models(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(FAMILIES[family].build().float())
    assert compared(model, monkeypatch, length=50) == len(model.spec.layers)


def test_keys_outside_of_a_window_are_in_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights too, whose hidden entries are 0 in a whole map."""
    model, tokens = own("alibi:window=10"), np.arange(3, 63)
    for _ in range(2):
        maps = capture(model, tokens, quantities=["weights"], resolution=6).maps
        mean = maps["layer.0.weights.mean"]
        far = np.subtract.outer(np.arange(6), np.arange(6)) > 1
        assert np.isnan(mean[:, far]).all()
        assert np.isfinite(mean[:, np.eye(6, dtype=bool)]).all()
        monkeypatch.setattr(score_cells, "refuses", lambda _: "asked not to")


def test_no_row_of_scores_is_computed_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "scores", Mock(side_effect=AssertionError))
    capture(own("cable"), np.arange(3, 40), resolution=5)


@pytest.mark.parametrize(
    "name", ["rope", "alibi:window=20", "cable", "fire", "alibi:sink=true", "dapev2+kerple"]
)
def test_the_norms_of_a_long_input_are_native(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = own(name), np.arange(3, 63)
    exact = capture(model, tokens).calls[0].lse
    assert exact is not None
    monkeypatch.setattr(call_blocks, "EXACT_LENGTH", 59)
    monkeypatch.setattr(SavedCall, "log_sum_exp", Mock(side_effect=AssertionError))
    heads = [0, 1, 2, 3] if name.startswith("dape") else [2, 0]
    found = capture(model, tokens, heads=heads).calls[0].lse
    np.testing.assert_allclose(found, exact[heads], rtol=0, atol=1e-5)


def test_progress_counts_every_query() -> None:
    inputs: list[AttentionCall] = []
    own("alibi").observe(torch.arange(3, 63)[None], [0], lambda _, found: inputs.append(found))
    for window in (None, (slice(5, 17), slice(0, 9))):
        done: list[int] = []
        request = Request(layers=(0,), heads=(0,), resolution=4, window=window)
        record.layer_maps(0, inputs[0], request, done.append)
        assert sum(done) == 60
