"""Where conventions change: bucket borders, switches of frequencies, odd dims, tiny lengths.

Expected values are transformers' own functions, run live, or written out here in float64.
"""

import math

import numpy as np
import pytest
import torch

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, QueriesAndKeys, Side, build
from headscape.encodings.t5 import bucket
from headscape.errors import InputError
from headscape.properties.probe import draw


def made(name: str, head_dim: int = 16, **fields: object) -> Encoding:
    sizes = {"heads": 2, "head_dim": head_dim, "width": 2 * head_dim, "train_length": 64}
    return build(name, **{**sizes, **fields}).double()


def theirs(recipe: dict[str, object], head_dim: int, longest: int, length: int | None = None):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
        max_position_embeddings=longest, rope_parameters={"rope_theta": 1e4, **recipe},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[recipe["rope_type"]](config, "cpu", seq_len=length)


@pytest.mark.parametrize("trained", [1, 2, 5, 6, 7, 40, 4096])
@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_from_one_token_on(trained: int, truncate: bool) -> None:
    recipe = {"rope_type": "yarn", "factor": 4.0, "truncate": truncate}
    recipe["original_max_position_embeddings"] = trained
    expected, factor = theirs(recipe, 32, 4 * trained)
    ours = made("rope", 32, scaling="yarn", factor=4.0, truncate=truncate, trained_length=trained)
    torch.testing.assert_close(ours.frequencies(0), expected.double(), rtol=2e-6, atol=0)
    assert ours.attention_factor() == pytest.approx(factor)


@pytest.mark.parametrize(
    ("mscale", "all_dim"), [(1.0, 1.0), (0.707, 0.707), (1.0, 0.5), (0.7, None), (None, 0.7)]
)
@pytest.mark.parametrize("given", [None, 1.25])
def test_the_factors_of_deepseeks_yarn(
    mscale: float | None, all_dim: float | None, given: float | None
) -> None:
    recipe: dict[str, object] = {"rope_type": "yarn", "factor": 40.0}
    recipe["original_max_position_embeddings"] = 64
    fields: dict[str, object] = {"mscale": mscale, "mscale_all_dim": all_dim}
    fields["attention_factor"] = given
    fields = {key: value for key, value in fields.items() if value is not None}
    _, factor = theirs(recipe | fields, 16, 2560)
    ours = made("rope", scaling="yarn", factor=40.0, **fields)
    assert ours.attention_factor() == pytest.approx(factor)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000])
def test_longrope_switches_behind_the_trained_length(length: int) -> None:
    short, long = ([1 + 0.1 * m for m in range(8)], [3.0 + m for m in range(8)])
    recipe = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 8.0}
    recipe["original_max_position_embeddings"] = 64
    expected, factor = theirs(recipe, 16, 512, length)
    ours = made(
        "rope", scaling="longrope", factor=8.0, short_factor=tuple(short), long_factor=tuple(long)
    )
    torch.testing.assert_close(ours.frequencies(length), expected.double(), rtol=2e-6, atol=0)
    assert ours.attention_factor() == pytest.approx(factor)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("head_dim", [16, 20, 64])
def test_proportional_frequencies_are_those_of_the_whole_head(
    fraction: float, head_dim: int
) -> None:
    turning = int(fraction * head_dim // 2)
    expected = np.zeros(head_dim // 2)
    expected[:turning] = 1e4 ** (-2 * np.arange(turning) / head_dim) / 8
    fields = {"pairing": "halves", "scaling": "proportional", "factor": 8.0}
    ours = made("rope", head_dim, rotary_fraction=fraction, **fields)
    torch.testing.assert_close(ours.frequencies(0), torch.tensor(expected))
    x, at = draw(1, 2, 9, head_dim, seed=1), torch.arange(9)[None]
    still = [m for m in range(head_dim) if m % (head_dim // 2) >= turning]
    turned = ours.rotate(x, Side(at, "key"))
    assert torch.equal(turned[..., still], x[..., still])
    assert turning == 0 or not torch.equal(turned, x)


@pytest.mark.parametrize(("head_dim", "length"), [(16, 512), (64, 512), (64, 4096), (128, 4096)])
def test_rope_id_turns_the_fast_half_of_the_pairs_by_whole_turns(
    head_dim: int, length: int
) -> None:
    largest = (length / (2 * np.pi)) ** (2 * head_dim / (head_dim - 4))
    fields = {"pairing": "halves", "scaling": "proportional", "rotary_fraction": 0.5}
    turns = [
        length * made("rope", head_dim, base=base, **fields).frequencies(0).numpy() / (2 * np.pi)
        for base in (0.99 * largest, 1.01 * largest)
    ]
    for each in turns:
        assert np.array_equal(each > 0, np.arange(head_dim // 2) < head_dim // 4)
    assert turns[0][: head_dim // 4].min() > 1 > turns[1][: head_dim // 4].min() > 0.9
    x, at = draw(1, 2, 9, head_dim, seed=1), torch.arange(9)[None]
    moved = made("rope", head_dim, **fields).rotate(x, Side(at, "key")) - x
    moves = moved.abs().amax(dim=(0, 1, 2)).view(4, -1) > 0
    assert moves.tolist() == [[quarter % 2 == 0] * (head_dim // 4) for quarter in range(4)]


@pytest.mark.parametrize(
    ("near", "far"), [(8, 20), (16, 17), (256, 512), (32, 128), (2, 9), (5, 30), (7, 30)]
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_deberta_buckets_up_to_far_beyond_the_maximum(near: int, far: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-1200, 1201)
    ours = made("deberta", buckets=near, max_distance=far)
    expected = make_log_bucket_position(distance, near, far).long()
    assert torch.equal(
        ours.bucket(distance).clamp(-near, near - 1), expected.clamp(-near, near - 1)
    )


@pytest.mark.parametrize(("buckets", "far"), [(320, 800), (32, 128), (16, 20)])
def test_wavlm_and_layoutlmv3_have_the_buckets_of_t5(buckets: int, far: int) -> None:
    from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder
    from transformers.models.wavlm.modeling_wavlm import WavLMAttention

    distance = torch.arange(-5000, 5001)
    ours = bucket(distance, buckets=buckets, max_distance=far, causal=False)
    wavlm = WavLMAttention(8, 2, num_buckets=buckets, max_distance=far)
    assert torch.equal(ours, wavlm._relative_positions_bucket(-distance))
    sizes = {"num_buckets": buckets, "max_distance": far}
    theirs = LayoutLMv3Encoder.relative_position_bucket(None, -distance, **sizes)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("terms", ["both", "c2p", "p2c"])
def test_deberta_without_buckets_clips_on_either_side(terms: str, causal: bool) -> None:
    ours = made("deberta", 4, buckets=3, bucketing="none", terms=terms, causal=causal)
    q, k = draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 4, seed=2)
    where, heads = Positions.span(9), QueriesAndKeys(q, k, 0.5)
    found = dense(ours.bias(LayerContext(where, None, None, heads)), where)[0].detach()
    q_rows, k_rows = (rows.detach() for rows in ours.projected(heads))
    for i in range(9):
        for j in range(i + 1 if causal else 9):
            row = max(-3, min(2, i - j)) + 3
            expected = torch.zeros(2, dtype=torch.float64)
            if terms != "p2c":
                expected += 0.5 * (q[0, :, i] * k_rows[:, row]).sum(-1)
            if terms != "c2p":
                expected += 0.5 * (k[0, :, j] * q_rows[:, row]).sum(-1)
            torch.testing.assert_close(found[:, i, j], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_shaw_clips_on_either_side(causal: bool) -> None:
    fields = {"left": 3, "right": 2} if not causal else {"left": 3}
    ours = made("shaw", 4, causal=causal, **fields)
    q, k = draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 4, seed=2)
    where = Positions.span(9)
    found = dense(ours.bias(LayerContext(where, None, None, QueriesAndKeys(q, k, 0.5))), where)[
        0
    ].detach()
    table = ours.table.detach()
    for i in range(9):
        for j in range(i + 1 if causal else 9):
            row = max(-3, min(0 if causal else 2, j - i)) + 3
            expected = 0.5 * (q[0, :, i] * table[row]).sum(-1)
            torch.testing.assert_close(found[:, i, j], expected)


def test_inkling_is_zero_from_its_extent_on() -> None:
    ours = made("inkling", extent=5, rank=3)
    stream, where = ours.stream(LayerInput(draw(1, 12, 32, seed=1))), Positions.span(12)
    found = dense(ours.bias(LayerContext(where, stream, stream)), where)[0].detach()
    distance = where.distance()[0]
    assert not found[:, distance >= 5].any()
    assert found[:, (distance >= 0) & (distance < 5)].all()


@pytest.mark.parametrize(("kind", "steps_at"), [("llama4", 7), ("ministral", 8), ("inkling", 8)])
def test_temperatures_start_where_their_models_do(kind: str, steps_at: int) -> None:
    ours = made("nope", temperature=kind, temperature_start=8)
    factor = ours.temperature(torch.arange(20)[None])[0, 0]
    assert torch.equal(factor[:steps_at], torch.ones(steps_at, dtype=factor.dtype))
    assert factor[steps_at] > 1
    if kind != "inkling":
        assert factor[steps_at].item() == pytest.approx(1 + 0.1 * math.log(2))


@pytest.mark.parametrize(("head_dim", "fraction", "width"), [(10, 0.5, 5), (16, 0.3, 4)])
def test_a_rotary_width_is_truncated_and_may_be_odd(
    head_dim: int, fraction: float, width: int
) -> None:
    recipe = {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": fraction}
    expected, _ = theirs(recipe, head_dim, 64)
    fields = {"pairing": "halves", "scaling": "linear", "factor": 2.0}
    ours = made("rope", head_dim, rotary_fraction=fraction, **fields)
    found = ours.frequencies(0)
    torch.testing.assert_close(found, expected.double(), rtol=2e-6, atol=0)
    by_hand = 1e4 ** (-2 * np.arange(-(-width // 2)) / width) / 2
    torch.testing.assert_close(found, torch.tensor(by_hand))
    x = draw(1, 2, 9, head_dim, seed=1)
    turned = ours.rotate(x, Side(torch.arange(9)[None], "key"))
    assert torch.equal(turned[..., width + width % 2 :], x[..., width + width % 2 :])


@pytest.mark.parametrize(("head_dim", "fraction"), [(9, 1.0), (16, 0.05)])
def test_pairs_must_fit_into_the_head(head_dim: int, fraction: float) -> None:
    with pytest.raises(InputError, match="fit into pairs of the head"):
        made("rope", head_dim, rotary_fraction=fraction)
