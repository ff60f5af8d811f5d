"""What a cache takes besides tokens in a row, and what it refuses."""

import pytest
import torch

from headscape.encodings import LayerContext, Side, build
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.kernels.native import adapter
from headscape.properties.probe import randomise


def tiny(encoding: str, **changes: object) -> GPT2:
    shape = {"layers": 2, "heads": 2, "width": 16, "vocabulary": 30, "train_length": 16}
    model = GPT2(ModelConfig(**shape, encoding=encoding, **changes)).double()
    randomise(model)
    return model


def test_positions_may_part_after_a_common_start() -> None:
    model = tiny("alibi")
    tokens = torch.randint(0, 30, (2, 5))
    later = torch.tensor([[4], [9]])
    at = torch.cat([torch.arange(4).expand(2, -1), later], dim=1)
    with torch.no_grad():
        whole = model(tokens, positions=at)
        cache = Cache(2)
        model(tokens[:, :4], cache=cache)
        last = model(tokens[:, 4:], cache=cache, positions=later)
    torch.testing.assert_close(last[:, 0], whole[:, 4])


def test_keys_out_of_order_are_decoded_by_their_positions() -> None:
    model = tiny("kerple")
    tokens = torch.randint(0, 30, (1, 4))
    at = torch.tensor([[0, 2, 1, 3]])
    with torch.no_grad():
        whole = model(tokens, positions=at)
        cache = Cache()
        model(tokens[:, :3], cache=cache, positions=at[:, :3])
        last = model(tokens[:, 3:], cache=cache, positions=at[:, 3:])
    torch.testing.assert_close(last[:, 0], whole[:, 3])


def test_a_bidirectional_model_does_not_decode() -> None:
    model = tiny("alibi", causal=False)
    with torch.no_grad(), pytest.raises(InputError, match="leave the cache out"):
        model(torch.zeros(1, 3, dtype=torch.long), cache=Cache())


def test_dynamic_frequencies_are_not_shift_invariant() -> None:
    made = {"heads": 1, "head_dim": 8, "width": 8, "train_length": 4}
    assert build("rope", **made).shift_invariant
    dynamic = build("rope", **made, scaling="dynamic", factor=2.0).double()
    assert not dynamic.shift_invariant
    q, k = (torch.randn(1, 1, 4, 8, dtype=torch.float64) for _ in range(2))
    at = torch.arange(4)[None]
    scores = [
        dynamic.rotate(q, Side(at + move, "query")) @ dynamic.rotate(k, Side(at + move, "key")).mT
        for move in (0, 20)
    ]
    assert (scores[0] - scores[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["kerple", "fire"])
def test_far_distances_stay_apart_in_bfloat16(name: str) -> None:
    from headscape.call.bias import dense
    from headscape.call.positions import Positions

    encoding = build(name, heads=1, head_dim=8, width=8, train_length=4096)
    randomise(encoding)
    where = Positions.span(1, 2000)
    row = dense(encoding.bfloat16().bias(LayerContext(where)), where).flatten()[:1000]
    assert row.unique().numel() > 500


@pytest.mark.parametrize(
    "name",
    ["alibi", "t5", "kerple", "fire", "cable", "cable-nw", "fox", "k-cable", "dape+kerple",
     "dapev2+cable", "rope"],
)  # fmt: skip
def test_a_long_text_token_by_token_equals_one_pass(name: str) -> None:
    model = tiny(name)
    tokens = torch.randint(0, 30, (2, 90))
    # Single tokens past the point where kept sums get a new base, a pass of several, and room
    # that doubles on the way.
    ends = [*range(1, 75), 80, *range(81, 91)]
    with torch.no_grad():
        whole = model(tokens)
        cache, parts = Cache(2), []
        for begin, end in zip([0, *ends], ends, strict=False):
            parts.append(model(tokens[:, begin:end], cache=cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_far_sums_keep_their_precision_in_float32() -> None:
    from headscape.call.bias import Slope
    from headscape.gpt2.cache import FRESH, keep_bias

    sums = -torch.rand(1, 1, 4000, dtype=torch.float64).cumsum(-1)
    rows = keep_bias(Slope(None, sums, sums), 4000, torch.float32, mixes=False)
    for count in range(4000 - 3 * FRESH, 4001):
        own = Slope(None, sums[..., count - 1 : count], sums[..., :count])
        found = rows.row(count, own)
        row = (found.row[..., None] - found.col[:, :, None]).double().softmax(-1)
        exact = (own.row[..., None] - own.col[:, :, None]).softmax(-1)
        # The nearest key's bias is up to FRESH from 0, where a float32 is good to 4e-6.
        torch.testing.assert_close(row, exact, rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_kept_row_is_a_view_of_one_table(name: str) -> None:
    """T5's table is transposed in memory, but the row of every head must be contiguous."""
    model = tiny(name).float()
    tokens = torch.randint(0, 30, (1, 6))
    cache, kept = Cache(16), []
    with torch.no_grad():
        model(tokens[:, :4], cache=cache)
        for at in (4, 5):
            model(tokens[:, at : at + 1], cache=cache)
            kept.append(cache.rows[0])
    assert kept[0] is kept[1]
    rows, room = kept[0]
    assert room == 16
    assert rows.row(5, None).data_ptr() == rows.table[..., 16 - 5 :].data_ptr()
    assert rows.row(5, None).stride(-1) == 1


def test_a_cache_refuses_running_sums_that_need_a_gradient() -> None:
    model = tiny("cable").requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.attention.encoding.requires_grad_()
    with pytest.raises(InputError, match="no_grad"):
        model(torch.randint(0, 30, (1, 4)), cache=Cache())


@pytest.mark.parametrize("name", ["cable-nw", "fox"])
def test_half_precision_keeps_near_keys_near(name: str) -> None:
    model = tiny(name).bfloat16()
    tokens = torch.randint(0, 30, (1, 80))
    with torch.no_grad():
        whole = model(tokens)
        cache = Cache(80)
        parts = [model(tokens[:, at : at + 1], cache=cache) for at in range(80)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("path", ["native", "torch", "reference"])
def test_a_path_asked_for_by_name_decodes_too(path: str) -> None:
    model = tiny("kerple").float()
    tokens = torch.randint(0, 30, (1, 5))
    if path == "native" and adapter.available() is not None:
        pytest.skip(str(adapter.available()))
    with torch.no_grad():
        whole = model(tokens)
        cache = Cache()
        parts = [model(tokens[:, at : at + 1], cache=cache, path=path) for at in range(5)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_groups_are_decoded_apart() -> None:
    model = tiny("alibi")
    tokens = torch.randint(0, 30, (2, 6))
    groups = torch.tensor([[0, 0, 0, 1, 1, 1], [-1, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        whole = model(tokens, groups=groups)
        cache = Cache()
        parts = [
            model(tokens[:, at : at + 1], cache=cache, groups=groups[:, at : at + 1])
            for at in range(6)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1)[groups >= 0], whole[groups >= 0])


def test_a_failed_token_leaves_no_sum_behind() -> None:
    model = tiny("cable")
    tokens = torch.randint(0, 30, (1, 8))
    with torch.no_grad():
        whole = model(tokens)
        cache = Cache(16)
        for at in range(5):
            model(tokens[:, at : at + 1], cache=cache)
        block = model.blocks[1]
        fails, block.forward = block.forward, lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            model((tokens[:, 5:6] + 7) % 30, cache=cache)
        block.forward = fails
        model(tokens[:, 5:6], cache=cache, watch=lambda *_: None)
        parts = [model(tokens[:, at : at + 1], cache=cache) for at in (6, 7)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole[:, 6:])


@pytest.mark.parametrize(
    ("encoding", "makes"), [("transformer-xl", "basis"), ("deberta", "projected")]
)
def test_what_is_made_of_parameters_alone_is_made_for_many_tokens(
    encoding: str, makes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(encoding)
    kind, calls = type(model.encoding()), []
    right = getattr(kind, makes)
    monkeypatch.setattr(kind, makes, lambda *given: calls.append(1) or right(*given))
    tokens, cache = torch.randint(0, 30, (1, 40)), Cache()
    with torch.no_grad():
        whole = model(tokens)
        calls.clear()
        parts = [model(some, cache=cache) for some in tokens.split([4, *[1] * 36], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    # Transformer-XL computes its basis for 4, 10, 22 and 46 distances.
    assert len(calls) == 2 * (4 if encoding == "transformer-xl" else 1)


@torch.no_grad()
def test_sums_that_jump_are_not_rounded_by_their_size() -> None:
    torch.manual_seed(0)
    shape = {"layers": 1, "heads": 2, "width": 16, "vocabulary": 50, "train_length": 64}
    model = GPT2(ModelConfig(**shape, encoding="cable-nw"))
    for value in model.parameters():
        value.normal_(std=0.5)
    for value in model.blocks[0].attention.encoding.parameters():
        value.mul_(30)
    tokens, cache = torch.randint(50, (1, 80)), Cache()
    found = torch.cat([model(tokens[:, at : at + 1], cache=cache) for at in range(80)], dim=1)
    expected = model.double()(tokens, path="reference")
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-6)
