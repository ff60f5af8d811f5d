"""Scores reduced natively equal the definition's, reduced by hand."""

from dataclasses import is_dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import build
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.kernels.native import adapter
from headscape.kernels.native import score_cells as cells
from headscape.properties.probe import draw, randomise
from kernels.calls import Call, plain_call

pytestmark = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))


def edges_of(length: int, count: int) -> np.ndarray:
    return np.arange(count + 1, dtype=np.int64) * length // count


def doubled(value: object) -> object:
    """A dataclass of tensors, and of such dataclasses, in float64."""
    if isinstance(value, torch.Tensor):
        return value.double()
    if not is_dataclass(value):
        return value
    return replace(value, **{name: doubled(part) for name, part in vars(value).items()})


def check(inputs: AttentionCall, edges: np.ndarray) -> None:
    """Every cell of every quantity against the definition in float64."""
    found = cells.reduce_scores(inputs, edges)
    wide = {name: getattr(inputs, name).double() for name in "qkv"}
    wide["mixing"] = doubled(inputs.mixing)
    raw = inputs.unrotated
    wide["unrotated"] = None if raw is None else (raw[0].double(), raw[1].double())
    with torch.no_grad():
        every = definition.scores(replace(inputs, **wide))
    seen = every.visible[0, 0].numpy()
    for name, grid in found.items():
        exact = getattr(every, name)[0].detach().numpy()
        for a, (i, end) in enumerate(pairwise(edges)):
            for b, (j, stop) in enumerate(pairwise(edges)):
                shown = seen[i:end, j:stop]
                got = [grid[part][:, a, b] for part in ("mean", "min", "max")]
                if not shown.any():
                    assert np.isnan(got).all()
                    continue
                block = exact[:, i:end, j:stop][:, shown]
                wanted = [block.mean(1), block.min(1), block.max(1)]
                np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=3e-5, err_msg=name)


def encoded(name: str, length: int, **fields: object) -> AttentionCall:
    encoding = build(name, heads=3, head_dim=16, width=12, train_length=64, **fields)
    randomise(encoding)
    q, k, v = (draw(1, 3, length, 16, seed=seed).float() for seed in (1, 2, 3))
    with torch.no_grad():
        return prepare(
            encoding, q, k, v, draw(1, length, 12, seed=4).float(), Positions.span(length)
        )


@pytest.mark.parametrize(
    "name",
    ["nope", "rope", "pope", "alibi", "t5", "cable", "fox", "fire", "kerple-weight",
     "stick-breaking", "dape+kerple", "dapev2+kerple", "dapev2+cable"],
)  # fmt: skip
@pytest.mark.parametrize(("length", "count"), [(300, 7), (257, 19), (60, 60), (40, 1)])
def test_cells_are_the_definitions(name: str, length: int, count: int) -> None:
    check(encoded(name, length), edges_of(length, count))


@pytest.mark.parametrize(
    "kind",
    ["none", "toeplitz", "weighted slope", "sheared", "sheared by key", "factor", "sticks",
     "sticks, current, dropped"],
)  # fmt: skip
@pytest.mark.parametrize("causal", [True, False])
def test_what_acts_on_scores(kind: str, causal: bool) -> None:
    call: Call = plain_call(kind, 280)
    call.visible, call.softcap = Visible(causal, window=100), 3.0
    leaves = {name: x.float() for name, x in call.leaves.items()}
    leaves["temperature"] = torch.rand(1, 4, 280) + 0.5
    if "sticks" not in kind:
        leaves["sink"] = torch.randn(4)
    check(call.inputs(leaves), edges_of(280, 9))


@pytest.mark.parametrize(
    "kind",
    ["toeplitz", "weighted slope", "sheared", "sheared by key", "factor", "sticks",
     "sticks, current", "sticks, dropped"],
)  # fmt: skip
def test_a_bias_alone(kind: str) -> None:
    call = plain_call(kind, 150)
    check(call.inputs({name: x.float() for name, x in call.leaves.items()}), edges_of(150, 7))


def test_a_bias_that_is_added_is_reported_as_it_is() -> None:
    inputs = encoded("alibi", 200)
    grid = cells.reduce_scores(inputs, edges_of(200, 200))["bias"]
    with torch.no_grad():
        exact = definition.scores(inputs).bias[0].numpy()
    lower = np.tril_indices(200)
    assert np.array_equal(grid["min"][:, lower[0], lower[1]], exact[:, lower[0], lower[1]])


def test_threads_share_nothing() -> None:
    inputs, before = encoded("dapev2+kerple", 500), torch.get_num_threads()
    found = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        found.append(cells.reduce_scores(inputs, edges_of(500, 13)))
    torch.set_num_threads(before)
    for name in cells.QUANTITIES:
        for part in ("mean", "min", "max"):
            np.testing.assert_array_equal(found[0][name][part], found[1][name][part])


def test_refusals_name_the_reason() -> None:
    inputs = encoded("nope", 20)
    with pytest.raises(InputError, match="edges must rise from 0 to 20"):
        cells.reduce_scores(inputs, np.array([0, 10, 19]))
    groups = torch.zeros(1, 20, dtype=torch.long)
    with pytest.raises(InputError, match="without groups"):
        cells.reduce_scores(replace(inputs, visible=Visible(True, groups, groups)), edges_of(20, 2))
