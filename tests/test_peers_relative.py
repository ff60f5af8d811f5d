"""Relative attention against modules of Hugging Face transformers, run live with random weights.

A peer gets a layer's input; ours gets the peer's own projections of it and loads its tensors by
their published names. The peers' attention weights are compared.
"""

import pytest
import torch
from torch import Tensor, nn

from headscape.call import definition
from headscape.call.positions import Positions
from headscape.encodings import Encoding, build
from headscape.kernels.assemble import prepare
from headscape.properties.probe import draw

HEADS, DIM, LENGTH = 3, 8, 40
WIDTH = HEADS * DIM


def random(module: nn.Module) -> nn.Module:
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed) * 0.4
    return module.eval()


def encoding(name: str, peer: nn.Module, *, causal: bool = False, **fields: object) -> Encoding:
    made = build(
        name, heads=HEADS, head_dim=DIM, width=WIDTH, train_length=16, causal=causal, **fields
    ).double()
    made.load_published(peer.state_dict())
    return made


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# transformers scripts a function of DeBERTa with TorchScript while it is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("terms", [["c2p", "p2c"], ["c2p"], ["p2c"]])
def test_deberta_v2(shared: bool, terms: list[str]) -> None:
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = DebertaV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, relative_attention=True, position_buckets=6,
        max_relative_positions=20, share_att_key=shared, pos_att_type=terms,
    )  # fmt: skip
    peer = random(DisentangledSelfAttention(config))
    x, rows = draw(2, LENGTH, WIDTH, seed=50), draw(12, WIDTH, seed=51)
    seen = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    _, theirs = peer(x, seen, output_attentions=True, rel_embeddings=rows)
    peer.rel_embeddings = nn.Embedding(12, WIDTH, _weight=rows)
    ours = encoding(
        "deberta", peer, buckets=6, max_distance=20, share_att_key=shared,
        terms="both" if len(terms) == 2 else terms[0],
    )  # fmt: skip
    q, k, v = (heads(getattr(peer, f"{name}_proj")(x)) for name in ("query", "key", "value"))
    call = prepare(
        ours, q, k, v, None, Positions.span(LENGTH),
        project=lambda some: (heads(peer.query_proj(some[None]))[0],
                              heads(peer.key_proj(some[None]))[0]),
    )  # fmt: skip
    # Theirs takes square roots and logarithms in float32.
    same(definition.scores(call).weights, theirs, 1e-6)


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 7])
@pytest.mark.parametrize("clamp", [None, 5])
def test_xlnet(memory: int, clamp: int | None) -> None:
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    config = XLNetConfig(
        d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=16, vocab_size=19, clamp_len=clamp or -1
    )
    model = random(XLNetModel(config))
    peer = model.layer[0].rel_attn
    x = draw(LENGTH, 2, WIDTH, seed=50)
    mems = draw(memory, 2, WIDTH, seed=51) if memory else None
    r = model.relative_positional_encoding(LENGTH, LENGTH + memory, bsz=2).double()
    *_, theirs = peer(x, None, None, None, r, None, mems=mems, output_attentions=True)
    ours = encoding("transformer-xl", peer, clamp=clamp)
    whole = x if mems is None else torch.cat([mems, x])
    q = torch.einsum("ibh,hnd->bnid", x, peer.q)
    k, v = (torch.einsum("ibh,hnd->bnid", whole, each) for each in (peer.k, peer.v))
    call = prepare(ours, q, k, v, None, Positions.span(LENGTH, LENGTH + memory))
    # Theirs computes the sinusoids in float32.
    same(definition.scores(call).weights, theirs.permute(2, 3, 0, 1), 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["relative_key", "relative"])
def test_wav2vec2_bert(kind: str) -> None:
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as peers

    config = Wav2Vec2BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type=kind,
        left_max_position_embeddings=9, right_max_position_embeddings=4,
    )  # fmt: skip
    config._attn_implementation = "eager"
    peer = random(peers.Wav2Vec2BertSelfAttention(config))
    x = draw(2, LENGTH, WIDTH, seed=50)
    if kind == "relative":
        table = peers.Wav2Vec2BertRelPositionalEmbedding(config)(x).double()
        ours = encoding("transformer-xl", peer, layout="interleaved")
    else:
        table = None
        ours = encoding("shaw", peer, left=9, right=4)
    _, theirs = peer(x, relative_position_embeddings=table)
    q, k, v = (heads(getattr(peer, f"linear_{name}")(x)) for name in "qkv")
    call = prepare(ours, q, k, v, None, Positions.span(LENGTH))
    same(definition.scores(call).weights, theirs, 1e-5 if kind == "relative" else 1e-10)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["hybrid", "hybrid_sliding"])
def test_inkling(layer: str) -> None:
    from transformers.models.inkling import modeling_inkling as peers

    config = peers.InklingTextConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=[layer], num_attention_heads=HEADS,
        num_key_value_heads=1, head_dim=DIM, swa_head_dim=DIM, swa_num_attention_heads=HEADS,
        swa_num_key_value_heads=1, d_rel=4, rel_extent=11, sliding_window_size=6,
        log_scaling_n_floor=9,
    )  # fmt: skip
    config._attn_implementation = "eager"
    peer = random(peers.InklingAttention(config, 0))
    windowed = peer.is_sliding
    assert windowed == (layer == "hybrid_sliding")
    x = draw(2, LENGTH, WIDTH, seed=50)
    fields: dict[str, object] = {"rank": 4, "extent": 11}
    if windowed:
        fields = {"rank": 4, "window": 6}
    else:
        fields |= {"temperature": "inkling", "temperature_start": 9}
    ours = encoding("inkling", peer, causal=True, **fields)

    def projected(name: str) -> Tensor:
        found = getattr(peer, f"{name}_proj")(x)
        if name != "q":
            found = getattr(peer, f"{name}_sconv")(found)
        found = found.unflatten(-1, (-1, DIM))
        found = found if name == "v" else getattr(peer, f"{name}_norm")(found)
        return found.transpose(1, 2).double()

    where = Positions.span(LENGTH)
    call = prepare(ours, *(projected(name) for name in "qkv"), x, where)
    found = definition.scores(call)
    mask = torch.zeros(found.visible.shape, dtype=torch.float64)
    mask = mask.masked_fill(~found.visible, torch.finfo(torch.float64).min)
    _, theirs = peer(x, mask)
    # Theirs normalises and heats in float32.
    same(found.weights, theirs.double(), 1e-5)
