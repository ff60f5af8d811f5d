"""Each change of a call: against transformers where it has the same, else a direct float64 one."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from evaluation.models import stream, tiny
from headscape.call.definition import AttentionCall, scores
from headscape.diagnosis.changes import (
    BiasClipped,
    BiasStretched,
    Chunks,
    Clipped,
    Frequencies,
    Gap,
    Grouped,
    LogTemperature,
    NoRotation,
    Rotations,
    SinkWindow,
)
from headscape.diagnosis.heads import untrained_pairs
from headscape.diagnosis.remedies import pair_turns, refusals, remedies_for, turns_by_layer
from headscape.diagnosis.settings import patch
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.kernels import attend
from headscape.models.changed import ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from headscape.models.stretched import Extension, stretched_gpt2
from pretrained.families import FAMILIES, VOCABULARY

transformers = pytest.importorskip("transformers")
TRAINED, LENGTH = 16, 40


def model_of(encoding: str = "rope", **fields: Any) -> GPT2Model:
    return GPT2Model(tiny(encoding, train_length=TRAINED, **fields))


def tokens_of(length: int = LENGTH) -> torch.Tensor:
    return torch.from_numpy(stream(length).astype(np.int64))[None]


def call_of(model: GPT2Model, layer: int = 0) -> AttentionCall:
    calls: list[AttentionCall] = []
    model.observe(tokens_of(), [layer], lambda _, call: calls.append(call))
    return calls[0]


def turn(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Interleaved pairs of one vector, turned."""
    a, b = x[::2], x[1::2]
    out = np.empty_like(x)
    out[::2] = a * np.cos(angle) - b * np.sin(angle)
    out[1::2] = b * np.cos(angle) + a * np.sin(angle)
    return out


def direct(call: AttentionCall, distance_of: Any) -> np.ndarray:
    """Weights [h t s] if pair (i, j) is at the distance that is returned; None hides it."""
    assert call.unrotated is not None
    q, k = (x[0].numpy() for x in call.unrotated)
    heads, length, dims = q.shape
    speed = 10_000.0 ** (-np.arange(0, dims, 2) / dims)
    weights = np.zeros((heads, length, length))
    for h in range(heads):
        for i in range(length):
            row = np.full(length, -np.inf)
            for j in range(i + 1):
                d = distance_of(i, j)
                if d is not None:
                    row[j] = call.scale * float(turn(q[h, i], d * speed) @ k[h, j])
            e = np.exp(row - row.max())
            weights[h, i] = e / e.sum()
    return weights


def grouped(near: int, size: int) -> Any:
    def distance(i: int, j: int) -> int:
        if i - j < near:
            return i - j
        return i // size - j // size + near - near // size

    return distance


def sunk(window: int, sinks: int) -> Any:
    def distance(i: int, j: int) -> int | None:
        if i - j < window:
            return i - j
        # As in a cache of sinks + window tokens: the sinks stand directly before the window.
        return min(i, window + sinks - 1) - j if j < sinks else None

    return distance


@pytest.mark.parametrize(
    ("make", "distance"),
    [
        (lambda r: Clipped(r, 8), lambda i, j: min(i - j, 8)),
        (lambda r: Grouped(r, 8, 3), grouped(8, 3)),
        (lambda r: SinkWindow(r, 12, 4), sunk(12, 4)),
        (lambda r: SinkWindow(r, 8, 1), sunk(8, 1)),
    ],
)
def test_positions_are_those_of_a_direct_computation(make: Any, distance: Any) -> None:
    model = model_of()
    call = call_of(model)
    changed = make(Rotations(model.spec))(0, call)
    expected = direct(call, distance)
    assert np.abs(scores(changed).weights[0].numpy() - expected).max() < 1e-12
    plain = direct(call, lambda i, j: i - j)
    assert np.abs(scores(call).weights[0].numpy() - plain).max() < 1e-12
    assert np.abs(expected - plain).max() > 1e-3
    ran = attend.run(changed)[0].numpy()
    assert np.abs(ran - expected @ call.v[0].numpy()).max() < 1e-12


def test_only_the_chosen_heads_are_clipped() -> None:
    model = model_of()
    call = call_of(model)
    rotations = Rotations(model.spec)
    one = scores(Clipped(rotations, 8, heads=(1,))(0, call)).weights[0]
    assert torch.allclose(one[0], scores(call).weights[0, 0], atol=1e-14)
    assert torch.allclose(one[1], scores(Clipped(rotations, 8)(0, call)).weights[0, 1], atol=1e-14)


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn"])
def test_frequencies_equal_a_model_built_that_way(kind: Any) -> None:
    model = model_of()
    factor = 1.0 if kind == "dynamic" else 4.0
    change = Frequencies.of(model.spec, scaling=kind, factor=factor)
    built = GPT2Model(stretched_gpt2(model.gpt2, Extension(kind=kind, factor=factor), 64))
    windows = tokens_of(65)
    found = ChangedModel(model, change, name=kind, mark=kind).losses(windows, 0)
    assert torch.allclose(found, built.losses(windows, 0), atol=1e-10)
    assert not torch.allclose(found, model.losses(windows, 0), atol=1e-3)


ORIGINAL = {"original_max_position_embeddings": 64}


def in_transformers(kind: str, dims: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of our RoPE, and transformers' parameters that mean the same."""
    factor = 1.0 if kind == "dynamic" else 4.0
    fields: dict[str, Any] = {"scaling": kind, "factor": factor}
    if kind == "ntk":
        return fields, {"rope_theta": 10_000.0 * factor ** (dims / (dims - 2))}
    if kind == "longrope":
        long = tuple(np.linspace(1.0, factor, dims // 2).tolist())
        fields |= {"short_factor": (1.0,) * (dims // 2), "long_factor": long}
    same = {key: list(x) for key, x in fields.items() if isinstance(x, tuple)}
    original = {} if kind in {"linear", "dynamic"} else ORIGINAL
    return fields, {"rope_type": kind, "factor": factor, **same, **original}


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "longrope"])
def test_a_published_model_has_transformers_own_loss(name: str, kind: str) -> None:
    family = FAMILIES[name]
    plain = family.build()
    model: Any = load(plain)
    windows = torch.randint(3, VOCABULARY, (1, 257), generator=torch.Generator().manual_seed(5))
    fields, theirs = in_transformers(kind, model.spec.head_dim)
    own = plain.config.rope_parameters
    expected = load(family.build(rope_parameters={**own, **theirs})).losses(windows, 0)
    change = Frequencies.of(model.spec, **fields)
    found = ChangedModel(model, change, name="changed", mark="changed").losses(windows, 0)
    assert torch.allclose(found, expected, atol=2e-4)
    assert float((found - model.losses(windows, 0)).abs().max()) > 1e-3


def test_a_published_model_without_a_change_of_positions_is_itself() -> None:
    model: Any = load(FAMILIES["llama"].build())
    windows = torch.randint(3, VOCABULARY, (2, 90), generator=torch.Generator().manual_seed(5))
    unchanged = ChangedModel(model, lambda _, call: call, name="same", mark="same")
    assert torch.allclose(unchanged.losses(windows, 0), model.losses(windows, 0), atol=1e-5)
    at = torch.tensor([3, 50, 88])
    some = ChangedModel(model).losses_at(windows, at)
    assert torch.allclose(some, model.losses(windows, 0)[:, at], atol=1e-5)
    seen: list[int] = []
    unchanged.observe(windows[:, :-1], [1], lambda layer, _: seen.append(layer))
    assert seen == [1]


def test_a_published_model_sees_clipped_positions() -> None:
    """Up to `near` nothing changes; beyond it the loss does."""
    model: Any = load(FAMILIES["llama"].build())
    windows = torch.randint(3, VOCABULARY, (1, 90), generator=torch.Generator().manual_seed(5))
    changed = ChangedModel(model, Clipped(Rotations(model.spec), 32), name="c", mark="c")
    gap = (changed.losses(windows, 0) - model.losses(windows, 0)).abs()[0]
    assert float(gap[:32].max()) < 1e-5
    assert float(gap[33:].max()) > 1e-4


def test_a_layer_without_rotation_is_content_alone() -> None:
    model = model_of()
    call = call_of(model, 1)
    changed = NoRotation((1,))(1, call)
    assert torch.equal(scores(changed).final, scores(call).content)
    assert NoRotation((1,))(0, call) is call


def test_the_temperature_is_one_up_to_the_trained_length() -> None:
    model = model_of()
    call = call_of(model)
    changed = LogTemperature(TRAINED)(0, call)
    ratio = scores(changed).final[0, 0, :, 0] / scores(call).final[0, 0, :, 0]
    expected = [max(1.0, math.log(i + 1) / math.log(TRAINED)) for i in range(LENGTH)]
    assert np.abs(ratio.numpy() - expected).max() < 1e-12


def test_chunks_see_their_own_block() -> None:
    weights = scores(Chunks(16)(0, call_of(model_of()))).weights[0, 0]
    assert torch.equal((weights[:, 0] > 0).nonzero()[:, 0], torch.arange(16))
    assert bool((weights[20] > 0)[16:21].all())


def test_a_bias_by_distance_is_stretched_and_clipped() -> None:
    call = call_of(model_of("alibi"))
    own, apart = scores(call).bias[0], torch.arange(LENGTH)
    distance = (apart[:, None] - apart).double()
    slope, causal = own[:, 1, 0], distance >= 0
    stretched = scores(BiasStretched(4.0)(0, call)).bias[0]
    expected = slope[:, None, None] * distance / 4
    assert float(((stretched - expected) * causal).abs().max()) < 1e-6
    clipped = scores(BiasClipped(7)(0, call)).bias[0]
    expected = slope[:, None, None] * distance.clamp(max=7)
    assert float(((clipped - expected) * causal).abs().max()) < 1e-6


def test_a_slope_by_tokens_is_stretched() -> None:
    call = call_of(model_of("cable"))
    causal = torch.ones(LENGTH, LENGTH).tril().bool()
    gap = scores(BiasStretched(4.0)(0, call)).bias - scores(call).bias / 4
    assert float(gap[0].masked_fill(~causal, 0.0).abs().max()) < 1e-12


def test_a_change_says_where_it_does_not_apply() -> None:
    alibi, rope = model_of("alibi").spec, model_of().spec
    assert "alibi" in str(Clipped(Rotations(alibi), 8).refuses(alibi))
    assert "rope" in str(BiasClipped(8).refuses(rope))
    stretched = model_of("rope", scaling="yarn", factor=2.0).spec
    assert "yarn" in str(Frequencies.of(stretched, scaling="linear").refuses(stretched))


def test_a_rotation_that_is_not_the_configs_is_refused() -> None:
    model = model_of()
    other = model_of("rope", base=500.0)
    with pytest.raises(InputError, match="does not rotate as its config says"):
        Clipped(Rotations(model.spec), 8)(0, call_of(other))


def test_a_changed_model_has_its_own_fingerprint_and_cannot_generate() -> None:
    model = model_of()
    changed = ChangedModel(model, Chunks(16), name="chunks", mark="chunks 16")
    assert changed.fingerprint != model.fingerprint
    assert ChangedModel(model).fingerprint == model.fingerprint
    assert changed.spec.name == "chunks"
    with pytest.raises(InputError, match="cannot generate"):
        changed.continuation(tokens_of(4), length=1)
    where = torch.zeros(1, LENGTH, dtype=torch.bool)
    where[0, [3, 17]] = True
    same = ChangedModel(model, lambda _, call: call, name="same", mark="same")
    assert torch.equal(same.predictions(tokens_of(), where), model.predictions(tokens_of(), where))


def test_slow_pairs_that_are_cut_do_not_turn() -> None:
    """The same as Gemma's proportional form, which turns the first pairs only."""
    model = model_of()
    turns = pair_turns(model.spec, TRAINED)
    fast = sum(turn >= 1 for turn in turns)
    assert 0 < fast < len(turns)
    [remedy], _ = remedies_for(model.spec, TRAINED, LENGTH, ["prope"])
    first = Frequencies.of(model.spec, scaling="proportional", rotary_fraction=fast / len(turns))
    windows = tokens_of(LENGTH + 1)
    expected = ChangedModel(model, first, name="first", mark="first").losses(windows, 0)
    assert torch.allclose(remedy.applied(model).losses(windows, 0), expected, atol=1e-9)


def test_a_gap_is_later_positions_with_the_same_keys() -> None:
    model = model_of()
    call = call_of(model)

    def moved(at: int) -> int:
        return at + 100 * (at >= 20)

    changed = Gap(Rotations(model.spec), 20, 100)(0, call)
    expected = direct(call, lambda i, j: moved(i) - moved(j))
    assert np.abs(scores(changed).weights[0].numpy() - expected).max() < 1e-12
    assert changed.positions is call.positions


def test_far_positions_of_a_changing_rotation_have_the_frequencies_of_the_text() -> None:
    """Clipped and grouped positions are small, but the text is as long as before."""
    family = FAMILIES["llama"]
    tokens = torch.randint(3, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    kinds: list[dict[str, Any]] = [
        {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4,
         "long_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 16},
        {"rope_type": "dynamic", "factor": 2.0},
    ]  # fmt: skip
    for given in kinds:
        theirs = family.build(
            rope_parameters={"rope_theta": 1e4, **given}, max_position_embeddings=16
        )
        model: Any = load(theirs)
        calls: list[AttentionCall] = []
        model.observe(tokens, [1], lambda _, call, calls=calls: calls.append(call))
        [call] = calls
        rotations = Rotations(model.spec)
        encoding: Any = rotations.layer(1)
        speed, factor = encoding.frequencies(LENGTH), encoding.attention_factor()
        for change, distance in (
            (lambda _, call: call, lambda i, j: i - j),
            (Clipped(rotations, 8), lambda i, j: min(i - j, 8)),
            (Grouped(rotations, 8, 5), grouped(8, 5)),
            (SinkWindow(rotations, 12, 4), sunk(12, 4)),
        ):
            expected = in_halves(call, distance, speed, factor)
            found = scores(change(1, call)).weights[0].double()
            assert float((found - expected).abs().max()) < 1e-5, (given["rope_type"], change)


def in_halves(
    call: AttentionCall, distance_of: Any, speed: torch.Tensor, factor: float
) -> torch.Tensor:
    """Weights of a model whose pairs are halves and whose keys are shared by heads, in float64."""
    assert call.unrotated is not None
    q, k = (x[0].double() for x in call.unrotated)
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    pairs, count = len(speed), q.shape[1]
    final = torch.full((q.shape[0], count, count), -torch.inf, dtype=torch.float64)
    for i in range(count):
        for j in range(i + 1):
            distance = distance_of(i, j)
            if distance is None:
                continue
            a, b = q[:, i, :pairs], q[:, i, pairs:]
            cos, sin = (distance * speed).cos(), (distance * speed).sin()
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
            final[:, i, j] = call.scale * factor**2 * (turned * k[:, j]).sum(dim=-1)
    return final.softmax(dim=-1)


def by_distance(encoding: str) -> tuple[AttentionCall, torch.Tensor]:
    """A call of a layer, and its bias by distance [h d] in float64, read off its last query."""
    call = call_of(model_of(encoding))
    bias = scores(call).bias[0].double()
    return call, torch.stack([bias[:, -1, LENGTH - 1 - d] for d in range(LENGTH)], dim=1)


@pytest.mark.parametrize(
    "encoding", ["t5", "t5-clipped", "kerple", "kerple-power", "bam", "sandwich"]
)
def test_tables_are_stretched_and_clipped(encoding: str) -> None:
    call, table = by_distance(encoding)
    apart = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    causal = torch.ones(LENGTH, LENGTH).tril()
    where = apart.double() / 2.5
    low = where.floor().long()
    share = where - low
    expected = table[:, low] * (1 - share) + table[:, (low + 1).clamp(max=LENGTH - 1)] * share
    found = scores(BiasStretched(2.5)(0, call)).bias[0]
    assert float(((found - expected) * causal).abs().max()) < 1e-6
    found = scores(BiasClipped(7)(0, call)).bias[0]
    assert float(((found - table[:, apart.clamp(max=7)]) * causal).abs().max()) < 1e-6
    assert float(((table[:, apart.clamp(max=7)] - table[:, apart]) * causal).abs().max()) > 1e-4


@torch.no_grad()
def test_fire_takes_the_changed_distance() -> None:
    model = model_of("fire")
    call, fire = call_of(model), model.gpt2.encoding(0)
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    apart = (i - j).clamp(min=0).double()
    rate, limit = fire.c.abs(), (fire.length_multiplier * fire.config.length).abs()

    def expected(distance: torch.Tensor) -> torch.Tensor:
        u = torch.log1p(rate * distance) / (torch.log1p(rate * torch.maximum(i, limit)) + 1e-6)
        return fire.outer(fire.inner(u[..., None].to(fire.inner.weight)).relu()).movedim(-1, 0)

    causal = torch.ones(LENGTH, LENGTH).tril()
    for change, distance in ((BiasStretched(4.0), apart / 4), (BiasClipped(7), apart.clamp(max=7))):
        gap = (scores(change(0, call)).bias[0] - expected(distance)) * causal
        assert float(gap.abs().max()) < 1e-6
    assert float((expected(apart / 4) - expected(apart)).abs().max()) > 1e-4


@pytest.mark.parametrize(
    "encoding", ["cable", "cable-nw", "k-cable", "k-cable:weights=inside", "fox", "rope+fox"]
)
def test_sums_over_tokens_are_stretched_and_clipped(encoding: str) -> None:
    call = call_of(model_of(encoding))
    parts: Any = call.bias
    gap = parts.row[0, :, :, None] - parts.col[0, :, None, :]
    weight = torch.ones_like(gap[..., :1]) if parts.weight is None else parts.weight[0, ..., None]

    def bias(gap: torch.Tensor) -> torch.Tensor:
        if not encoding.startswith("k-"):
            return weight * gap
        return -torch.log1p((weight * gap).square())

    index = torch.arange(LENGTH)
    nearest = torch.maximum(index[None, :], (index[:, None] - 7).clamp(min=0))
    clipped = gap.gather(2, nearest.expand_as(gap))
    causal = torch.ones(LENGTH, LENGTH).tril()
    for change, expected in ((BiasStretched(4.0), gap / 4), (BiasClipped(7), clipped)):
        made = change(0, call).bias
        assert made is not None
        found = made.block(call.positions, slice(None), slice(None))[0]
        assert float(((found - bias(expected)) * causal).abs().max()) < 1e-9
    assert attend.run(BiasClipped(7)(0, call)).shape == call.q.shape


def test_the_rotation_of_a_combination_and_of_xpos_is_changed() -> None:
    for encoding in ("rope+fox", "rope+alibi", "xpos"):
        model = model_of(encoding)
        chosen, refused = remedies_for(model.spec, TRAINED, LENGTH)
        names = {each.name for each in chosen}
        assert {"clip", "group", "nope", "sinks"} <= names
        assert ("yarn" in names) == encoding.startswith("rope")
        assert ("stretch" in names) == ("+" in encoding)
        call = call_of(model)
        near = scores(Clipped(Rotations(model.spec), 8)(0, call))
        own = scores(call)
        apart = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        assert (
            float(((near.final - own.final)[0, :, (apart >= 0) & (apart <= 8)]).abs().max()) < 1e-9
        )
        assert float((near.final - own.final)[0, :, apart > 8].abs().max()) > 1e-3
        assert "xpos" in str(refused.get("yarn", "xpos"))


def test_a_layer_that_mixes_scores_refuses_far_scores() -> None:
    model = model_of("dapev2+rope")
    with pytest.raises(InputError, match="does more than to add to them"):
        Clipped(Rotations(model.spec), 8)(0, call_of(model))
    [clip], _ = remedies_for(model.spec, TRAINED, LENGTH, ["clip"])
    why = refusals(model, [clip], stream(LENGTH).astype(np.int64))
    assert "does more than to add" in why["clip"]


def test_windowed_layers_keep_their_frequencies() -> None:
    model: Any = load(FAMILIES["gemma3"].build())
    spec = model.spec
    windows = {number: layer.conventions.get("window") for number, layer in enumerate(spec.layers)}
    reaching = tuple(number for number, window in windows.items() if window is None)
    assert 0 < len(reaching) < len(windows)
    trained = max(window for window in windows.values() if window is not None)
    [yarn], _ = remedies_for(spec, trained, 4 * trained, ["yarn"])
    assert yarn.change.layers == reaching  # type: ignore[attr-defined]
    assert f"; {len(windows) - len(reaching)} layers with a window" in yarn.text
    turns = pair_turns(spec, trained)
    assert turns == turns_by_layer(spec, trained)[reaching[0]]
    assert {tuple(each["layers"]) for each in untrained_pairs(spec, trained, 4 * trained)} <= {
        reaching
    }
    told = patch(yarn, spec, trained, 4 * trained)
    assert told["transformers"] is told["vllm"] is None
    assert "leaves layers with a window" in told["note"]
    every, why = remedies_for(model_of("rope:window=8").spec, TRAINED, LENGTH, ["yarn", "ntk"])
    assert every == []
    assert "has a window or chunks within" in why["yarn"]


def test_pairs_that_never_turn_are_not_new() -> None:
    model: Any = load(FAMILIES["llama-proportional"].build())
    turns = pair_turns(model.spec, 64)
    assert 0.0 in turns
    pairs = untrained_pairs(model.spec, 64, 256)
    assert len(pairs) == sum(0 < turn < 1 for turn in turns)
    assert "Infinity" not in json.dumps(pairs)


def test_layers_that_have_no_rotation_are_not_chosen_for_nope() -> None:
    config = ModelConfig(
        layers=8, heads=2, width=16, vocabulary=40, train_length=TRAINED, encoding="rope*3,nope"
    )
    model = GPT2Model(GPT2(config))
    [nope], _ = remedies_for(model.spec, TRAINED, LENGTH, ["nope"])
    assert nope.change.layers == (4,)  # type: ignore[attr-defined]
    assert nope.text == "no rotation in layer 5"


def test_remedies_that_cannot_be_built_are_refused_before_anything_runs() -> None:
    chosen, refused = remedies_for(model_of(rotary_fraction=0.25).spec, TRAINED, LENGTH)
    assert "needs a rotary width above 2" in refused["ntk"]
    assert {"linear", "yarn"} <= {each.name for each in chosen}


def test_chunks_are_not_put_into_chunks() -> None:
    spec = model_of("rope:chunk=8").spec
    assert Chunks(16).refuses(spec) == "its layers have chunks already"
