"""Options of the authors' code beyond their defaults, against formulas written out here in float64.

The properties compare the forms themselves with the oracle; here are the names and shapes of the
authors' tensors, rates, small vectors, packed documents, and what is refused.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, Side, build
from headscape.encodings.alibi import fairseq
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.kernels.attend import attention
from headscape.properties.probe import draw

HEADS, DIM, LENGTH = 3, 8, 11
WIDTH, PAIRS = HEADS * DIM, DIM // 2


def made(name: str, **fields: object) -> Encoding:
    sizes = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "train_length": 16}
    return build(name, **{**sizes, **fields}).double()


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tensors; "__" in a name stands for a dot."""
    return {
        name.replace("__", "."): draw(*shape, seed=seed)
        for seed, (name, shape) in enumerate(shapes.items(), start=10)
    }


X = draw(2, LENGTH, WIDTH, seed=1)
QKV = [draw(2, HEADS, LENGTH, DIM, seed=seed) for seed in (2, 3, 4)]
FULL_RANK = {"phi_proj__weight": (HEADS, DIM, PAIRS), "phi_proj__scalar": (HEADS,)}
LOW_RANK = {"phi_proj__0__weight": (5, WIDTH), "phi_proj__1__weight": (HEADS * PAIRS, 5)}
TAPS = {"phi_conv1d__weight": (HEADS * PAIRS, 1, 3)}
LOW_GATE = {"phase_gate_proj__0__weight": (2, WIDTH), "phase_gate_proj__1__weight": (HEADS, 2)}
PAIR_GATE = LOW_GATE | {"phase_gate_proj__1__weight": (HEADS * PAIRS, 2)}


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        ({"projection": "per-head"}, FULL_RANK | TAPS),
        ({"projection": "per-head", "skip_conv": True}, FULL_RANK),
        ({"skip_conv": True, "bias": True}, LOW_RANK | {"phi_bias": (1, 1, HEADS, PAIRS)}),
        ({"activation": "silu"}, LOW_RANK | TAPS),
        (
            {"gate": "head"},
            LOW_RANK | TAPS | {"phase_gate_proj__weight": (HEADS, WIDTH)}
            | {"phase_gate_proj__bias": (HEADS,)},
        ),
        (
            {"gate": "head-low-rank"},
            LOW_RANK | TAPS | LOW_GATE | {"phase_gate_proj__1__bias": (HEADS,)},
        ),
        (
            {"gate": "pair", "bias": True, "rates": "rfa", "base": 0.7, "rate_max": 1.5},
            LOW_RANK | TAPS | PAIR_GATE | {"phase_gate_proj__1__bias": (HEADS * PAIRS,)}
            | {"phi_bias": (1, 1, HEADS, PAIRS)},
        ),
        ({"learned_rates": True}, LOW_RANK | TAPS | {"temperature": (1, 1, 1, PAIRS)}),
    ],
)  # fmt: skip
def test_selective_rope(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    given = tensors(**shapes)
    ours = made("selective-rope", rank=5, kernel=3, gate_rank=2, **fields)
    ours.load_published(
        {f"rotary.{name}": value for name, value in given.items()}, prefix="rotary."
    )
    slices = X.view(2, LENGTH, HEADS, DIM)
    slices = slices / (slices.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    unit = slices.flatten(2)
    if "phi_proj.scalar" in given:
        weight = given["phi_proj.weight"]
        weight = weight / weight.norm(dim=1, keepdim=True)
        phi = torch.einsum("bthi,him,h->bthm", slices, weight, given["phi_proj.scalar"]).flatten(2)
    else:
        phi = unit @ given["phi_proj.0.weight"].T @ given["phi_proj.1.weight"].T
    before = F.pad(phi, (0, 0, 2, 0))
    if "phi_conv1d.weight" in given:
        taps = given["phi_conv1d.weight"][:, 0].T
        phi = sum(taps[lag] * before[:, lag : lag + LENGTH] for lag in range(3))
    else:
        phi = phi - before[:, 1:-1]
    phi = (F.silu(phi) if "activation" in fields else phi).view(2, LENGTH, HEADS, PAIRS)
    phi = phi + given["phi_bias"].exp() if "phi_bias" in given else phi
    if "gate" in fields:
        logit = unit
        for name, value in given.items():
            if name.startswith("phase_gate_proj"):
                logit = logit + value if name.endswith("bias") else logit @ value.T
        phi = phi * logit.sigmoid().view(2, LENGTH, HEADS, -1)
    rate = 5e5 ** (-torch.arange(PAIRS).double() / PAIRS)
    if "rates" in fields:
        steps = torch.linspace(0, 0.7 * math.pi, PAIRS, dtype=torch.float64)
        rate = ((1 - steps.cos()) / (1 + steps.cos())).sqrt()
        rate = 1.5 * rate / rate.max()
    if "temperature" in given:
        rate = given["temperature"].flatten()
    angle = (phi.cumsum(1) * rate).transpose(1, 2)
    torch.testing.assert_close(ours.stream(LayerInput(X)).angle.detach(), angle)
    # A token at a time, from the carry.
    carry, parts = None, []
    for t in range(LENGTH):
        one = ours.stream(LayerInput(X[:, t : t + 1], carry))
        carry = one.carry
        parts.append(one.angle.detach())
    torch.testing.assert_close(torch.cat(parts, dim=2), angle)


@pytest.mark.parametrize("scale", [16.0, 1.0])
def test_grape_m_with_frequencies_per_head(scale: float) -> None:
    frequency = draw(HEADS, PAIRS, seed=5)
    ours = made("grape-m", phase="index", per_head_frequencies=True, scale=scale)
    ours.load_published({"grape.log_freq": frequency})
    at = torch.arange(LENGTH)
    angle = at[:, None] * (frequency / scale).exp()[:, None]
    first, second = QKV[0].chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    expected = torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)
    torch.testing.assert_close(ours.rotate(QKV[0], Side(at[None], "query")).detach(), expected)


def test_repo_with_one_linear_map() -> None:
    weight = draw(1, WIDTH, seed=5)
    ours = made("repo", position_map="linear", per_head=False)
    ours.load_published({"dynamic_map.weight": weight})
    rate = 5e5 ** (-torch.arange(PAIRS).double() / PAIRS)
    angle = (X @ weight.T)[:, None] * rate
    torch.testing.assert_close(ours.stream(LayerInput(X)).angle.detach(), angle)
    assert attention(*QKV, encoding=ours, x=X).shape == QKV[0].shape


@pytest.mark.parametrize("convolution", [False, True])
def test_path_divides_short_vectors_as_the_authors_do(convolution: bool) -> None:
    weight = 1e-4 * draw(WIDTH, WIDTH, seed=5)
    given = {"w_proj.weight": weight} | tensors(
        bt_proj__weight=(HEADS, WIDTH), bt_proj__bias=(HEADS,)
    )
    raw = X @ weight.T
    if convolution:
        given |= tensors(w_conv1d__weight=(WIDTH, 1, 1), w_conv1d__bias=(WIDTH,))
        given["w_conv1d.bias"] *= 1e-4
        raw = F.silu(raw * given["w_conv1d.weight"].flatten() + given["w_conv1d.bias"])
    ours = made(
        "path", low_rank=False, convolution=convolution, convolution_bias=convolution, kernel=1
    )
    ours.load_published(given)
    raw = raw.view(2, LENGTH, HEADS, DIM).transpose(1, 2)
    expected = raw / (raw.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    assert expected.norm(dim=-1).max() < 0.99
    torch.testing.assert_close(ours.stream(LayerInput(X)).reflections.w.detach(), expected)


def test_bam_with_a_negative_shape() -> None:
    given = {"shape": torch.tensor([-0.5, 0.0, 2.0]), "scale": torch.zeros(3)}
    with pytest.raises(InputError, match=r"smallest is -0\.5: use shape_stored='as-is'"):
        made("bam").load_published(given)
    ours = made("bam", shape_stored="as-is")
    assert torch.equal(ours.power().detach(), torch.ones(3).double())
    ours.load_published(given)
    table = ours.bias(LayerContext(Positions.span(LENGTH))).table.detach()
    distance = torch.arange(LENGTH).double() + 1e-5
    torch.testing.assert_close(table, -(distance ** given["shape"].double()[:, None]))


@pytest.mark.parametrize("path", ["reference", "torch", "auto"])
@pytest.mark.parametrize("on", ["scores", "content"])
@pytest.mark.parametrize("window", [None, 3])
def test_ssmax_counts_packed_keys_wherever_positions_start(
    on: str, window: int | None, path: str
) -> None:
    ours = made("alibi", slopes="fairseq", temperature="ssmax", temperature_on=on, window=window)
    ours.ssmax.data.copy_(torch.tensor([0.5, 1.0, 2.0]))
    groups = torch.tensor([[0] * 4 + [1] * 5 + [-1] * 2, [0] * 11])
    q, k, v = QKV
    found = attention(q, k, v, encoding=ours, groups=groups, path=path)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    seen = (distance >= 0) & (distance < (window or LENGTH))
    seen = seen & (groups[:, :, None] == groups[:, None]) & (groups >= 0)[:, None]
    heat = ours.ssmax.detach()[:, None, None] * seen.sum(-1).clamp(min=1).log()[:, None, :, None]
    content = q @ k.mT / math.sqrt(DIM)
    slopes = torch.tensor(fairseq(HEADS), dtype=torch.float64)
    bias = -slopes[:, None, None] * distance
    scores = heat * (content + bias) if on == "scores" else heat * content + bias
    weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(found.detach(), weights @ v)


def test_a_temperature_on_the_content_is_part_of_the_positional_scores() -> None:
    from headscape.call import definition

    ours = made("alibi", temperature="llama4", temperature_start=2, temperature_on="content")
    found = definition.scores(prepare(ours, *QKV, None, Positions.span(LENGTH)))
    content = QKV[0] @ QKV[1].mT / math.sqrt(DIM)
    torch.testing.assert_close(found.content, content)
    torch.testing.assert_close(found.content + found.bias, found.final)
    assert not ours.claims()["toeplitz"]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("selective-rope", {"rates": "rfa"}, "between 0 and 1 for rates='rfa'"),
        ("selective-rope", {"rates": "rfa", "base": 0.5, "head_dim": 2}, "at least two pairs"),
        ("selective-rope", {"skip_conv": True, "activation": "silu"}, "has no effect with skip_co"),
        ("grape-m", {"scale": 0.0}, "scale must be above 0, got 0.0"),
        ("grape", {"gate": "query", "unit_key": False}, "no effect with gate='query'"),
        ("path", {"convolution": False, "convolution_bias": True}, "without the convolution"),
        ("repo", {"position_map": "linear", "hidden": 4}, "hidden=4 has no effect"),
        ("alibi", {"temperature_on": "content"}, "no effect without a temperature"),
        ("rope", {"direction": "left"}, "is not one of 'forward', 'backward'"),
    ],
)
def test_options_that_contradict_each_other(
    name: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        made(name, **fields)
