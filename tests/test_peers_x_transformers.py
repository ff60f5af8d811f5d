"""The package against x-transformers, run live: ALiBi, T5, RoPE, NTK, xPos, FoX, CoPE, PoPE."""

import pytest
import torch

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, Side, build
from headscape.kernels.assemble import prepare
from headscape.properties.probe import draw, randomise

# x-transformers scripts a function with TorchScript while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def made(name: str, heads: int, head_dim: int = 8, **fields: object) -> Encoding:
    encoding = build(
        name, heads=heads, head_dim=head_dim, width=heads * head_dim, train_length=16, **fields
    )
    return encoding.double()


def bias(encoding: Encoding, queries: int, keys: int) -> torch.Tensor:
    at = Positions.span(queries, keys)
    with torch.no_grad():
        return dense(encoding.bias(LayerContext(at)), at)[0]


@pytest.mark.parametrize("heads", [1, 8, 12, 25])
def test_alibi_is_symmetric_with_fairseqs_slopes(heads: int) -> None:
    from x_transformers.x_transformers import AlibiPositionalBias

    peer = AlibiPositionalBias(heads)
    ours = made("alibi", heads, slopes="fairseq", causal=False)
    for queries in (1, 4, 48):
        theirs = peer(queries, 48).double()
        torch.testing.assert_close(bias(ours, queries, 48), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_t5_with_its_factor(causal: bool) -> None:
    from x_transformers.x_transformers import RelativePositionBias

    peer = RelativePositionBias(scale=8**0.5, causal=causal, heads=6).double()
    ours = made("t5", 6, multiplier="sqrt_head_dim", causal=causal)
    ours.table.weight.data.copy_(peer.relative_attention_bias.weight)
    for queries in (1, 200):
        with torch.no_grad():
            theirs = peer(queries, 200)
        seen = torch.ones(queries, 200).tril(200 - queries).bool()
        seen = seen if causal else torch.ones_like(seen)
        torch.testing.assert_close(
            bias(ours, queries, 200)[:, seen], theirs[:, seen], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    ("theirs", "fields"),
    [
        ({}, {}),
        ({"base": 500}, {"base": 500.0}),
        ({"interpolation_factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        ({"base_rescale_factor": 4.0}, {"scaling": "ntk", "factor": 4.0}),
    ],
)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_plain_interpolated_and_ntk(
    theirs: dict[str, float], fields: dict[str, object], fraction: float
) -> None:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    peer = RotaryEmbedding(int(16 * fraction), **theirs)
    angles, _ = peer(torch.arange(60))
    x = draw(2, 3, 60, 16, seed=1)
    ours = made("rope", 3, 16, rotary_fraction=fraction, **fields)
    gap = ours.rotate(x, Side(torch.arange(60)[None], "key")) - apply_rotary_pos_emb(
        x, angles.double()
    )
    # Their angles are float32: off by 60 * 2^-24 at most, and the frequencies by as much.
    assert gap.abs().max() < 4 * 60 * 2**-24 * x.abs().max()


def test_xpos_scores() -> None:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    peer = RotaryEmbedding(16, use_xpos=True, scale_base=64)
    angles, scale = (value.double() for value in peer(torch.arange(50)))
    q, k = draw(2, 3, 50, 16, seed=1), draw(2, 3, 50, 16, seed=2)
    theirs = apply_rotary_pos_emb(q, angles, scale) @ apply_rotary_pos_emb(k, angles, 1 / scale).mT
    ours = made("xpos", 3, 16, scale_base=64.0)
    at = torch.arange(50)[None]
    scores = ours.rotate(q, Side(at, "query")) @ ours.rotate(k, Side(at, "key")).mT
    seen = torch.ones(50, 50).tril().bool()
    gap = (scores - theirs)[..., seen]
    assert gap.abs().max() < 8 * 50 * 2**-24 * theirs[..., seen].abs().max()


@pytest.mark.parametrize("causal", [True, False])
def test_forget_gates(causal: bool) -> None:
    from x_transformers.x_transformers import DataDependentAlibi

    peer = DataDependentAlibi(24, 3, causal=causal).double()
    ours = made("fox", 3, causal=causal, gate_bias=5.0)
    assert torch.equal(ours.gate.bias, peer.to_forget_gates[0].bias)
    randomise(peer)
    ours.gate.load_state_dict(peer.to_forget_gates[0].state_dict())
    x = draw(2, 30, 24, seed=1)
    at = Positions.span(30)
    with torch.no_grad():
        stream = ours.stream(LayerInput(x))
        mine = dense(ours.bias(LayerContext(at, stream, stream)), at)
        theirs = peer(x)
    seen = torch.ones(30, 30).tril().bool() if causal else torch.ones(30, 30).bool()
    torch.testing.assert_close(mine[..., seen], theirs[..., seen], rtol=1e-10, atol=1e-10)


def test_contextual_positions() -> None:
    from x_transformers.x_transformers import CoPE

    peer = CoPE(dim=8, heads=3, max_pos=5).double()
    randomise(peer)
    ours = made("cope", 3, positions=5)
    ours.table.data.copy_(peer.pos_emb.T)
    q, k, v = (draw(2, 3, 20, 8, seed=seed) for seed in (1, 2, 3))
    with torch.no_grad():
        found = definition.scores(prepare(ours, q, k, v, None, Positions.span(20)))
        hidden = ~found.visible
        theirs = found.content + peer(q, found.content.masked_fill(hidden, -torch.inf))
    seen = found.visible.expand_as(theirs)
    torch.testing.assert_close(found.final[seen], theirs[seen], rtol=1e-10, atol=1e-10)


def test_polar_embedding() -> None:
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    peer = PolarEmbedding(8, heads=3, base=500)
    ours = made("pope", 3, base=500.0)
    with torch.no_grad():
        peer.learned_bias.copy_(draw(3, 1, 8, seed=3) * 4)  # on both sides of the clamp
    ours.load_published({"learned_bias": peer.learned_bias.detach().double()})
    q, k = draw(2, 3, 40, 8, seed=1), draw(2, 3, 40, 8, seed=2)
    angles, phase = peer(torch.arange(40))
    theirs = apply_polar_pos_emb(q, angles) @ apply_polar_pos_emb(k, angles + phase).mT
    at = torch.arange(40)[None]
    scores = ours.rotate(q, Side(at, "query")) @ ours.rotate(k, Side(at, "key")).mT
    torch.testing.assert_close(scores.detach(), theirs.detach(), rtol=1e-4, atol=1e-4)
