"""What each encoding's scores are by the oracle, with the weights and conventions of a module.

`expected(encoding, q, k, x, qpos, kpos)` gives final scores [b h t s], NaN where no value is
defined. A subclass is compared with its parent's formula, so a broken subclass fails. `formula` is
the property that a module computes them.
"""

from functools import singledispatch

import numpy as np
import torch
from torch import Tensor

import oracle
from headscape.attention import reference
from headscape.attention.layer import prepare
from headscape.encodings import Encoding
from headscape.encodings.alibi import ALiBi
from headscape.encodings.bam import BAM
from headscape.encodings.cable import CABLE, CABLENW, KCABLE
from headscape.encodings.carope import CARoPE
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.encodings.deberta import DeBERTa
from headscape.encodings.fire import FIRE, LEAK
from headscape.encodings.fox import FoX
from headscape.encodings.grape import GRAPE
from headscape.encodings.grape_multiplicative import GRAPEMultiplicative
from headscape.encodings.grid_table import Grid
from headscape.encodings.inkling import Inkling
from headscape.encodings.kerple import Kerple, KerplePower, KerpleWeight
from headscape.encodings.learned import Learned
from headscape.encodings.path import PaTH
from headscape.encodings.pope import PoPE
from headscape.encodings.repo import RePo
from headscape.encodings.rope import RoPE
from headscape.encodings.sandwich import Sandwich
from headscape.encodings.selective_rope import SelectiveRoPE
from headscape.encodings.shaw import Shaw
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.encodings.stick_breaking import StickBreaking
from headscape.encodings.t5 import T5, T5Clipped
from headscape.encodings.transformer_xl import TransformerXL
from headscape.encodings.wall import Wall
from headscape.encodings.wavlm import WavLM
from headscape.encodings.xpos import XPos
from headscape.properties.probe import HEAD_DIM, Factory, draw, randomise, shape
from headscape.properties.tolerance import require_same
from headscape.types import Positions

Array = np.ndarray


def array(value: Tensor) -> Array:
    """A tensor as a float64 array."""
    return value.detach().double().numpy()


@singledispatch
def bias(encoding: Encoding, x: Array, qpos: Array, kpos: Array) -> Array | None:
    """The additive bias, [h t s] or [b h t s]."""
    return None


@bias.register
def _(encoding: ALiBi, x: Array, qpos: Array, kpos: Array) -> Array:
    slopes = oracle.alibi_slopes(encoding.shape.heads, encoding.config.slopes)
    if encoding.config.divisor == "sqrt_head_dim":
        slopes = slopes / np.sqrt(encoding.shape.head_dim)
    return oracle.alibi_bias(slopes, qpos, kpos, causal=encoding.shape.causal)


@bias.register
def _(encoding: T5, x: Array, qpos: Array, kpos: Array) -> Array:
    return oracle.t5_bias(
        array(encoding.table.weight),
        qpos,
        kpos,
        M=encoding.config.max_distance,
        bidirectional=not encoding.shape.causal,
        factor=encoding.shape.head_dim**0.5 if encoding.config.multiplier != "one" else 1.0,
    )


@bias.register
def _(encoding: T5Clipped, x: Array, qpos: Array, kpos: Array) -> Array:
    table, K = array(encoding.table.weight), encoding.config.max_distance
    return oracle.t5_clipped_bias(table, qpos, kpos, K=K, causal=encoding.shape.causal)


@bias.register
def _(encoding: WavLM, x: Array, qpos: Array, kpos: Array) -> Array:
    causal, config = encoding.shape.causal, encoding.config
    table = array(encoding.table.weight)
    B = oracle.t5_bias(table, qpos, kpos, M=config.max_distance, bidirectional=not causal)
    learned = encoding.gate.weight, encoding.gate.bias, encoding.constant
    gate = oracle.wavlm_gate(x, *(array(each) for each in learned))
    return gate[:, :, oracle.own_key(qpos, kpos), None] * B


@bias.register
def _(encoding: Grid, x: Array, qpos: Array, kpos: Array) -> Array:
    sizes = encoding.rows, encoding.columns
    form = {"class_token": encoding.config.class_token, "causal": encoding.shape.causal}
    return oracle.grid_bias(array(encoding.table), *sizes, qpos, kpos, **form)


@bias.register
def _(encoding: Kerple, x: Array, qpos: Array, kpos: Array) -> Array:
    p, a = array(encoding.raw_p.exp()), array(encoding.raw_a.exp())
    return oracle.kerple_log_bias(p, a, qpos, kpos, causal=encoding.shape.causal)


@bias.register
def _(encoding: KerplePower, x: Array, qpos: Array, kpos: Array) -> Array:
    p, a = 2 * oracle.sigmoid(array(encoding.raw_p)), array(encoding.raw_a.exp())
    return oracle.kerple_power_bias(p, a, qpos, kpos, causal=encoding.shape.causal)


@bias.register
def _(encoding: BAM, x: Array, qpos: Array, kpos: Array) -> Array:
    loc = np.zeros(encoding.shape.heads) if encoding.loc is None else array(encoding.loc)
    return oracle.bam_bias(array(encoding.scale), array(encoding.raw_power.exp()), loc, qpos, kpos)


@bias.register
def _(encoding: Sandwich, x: Array, qpos: Array, kpos: Array) -> Array:
    return oracle.sandwich_bias(
        encoding.shape.heads,
        encoding.config.dims or encoding.shape.head_dim,
        qpos,
        kpos,
        base=encoding.config.base,
        first=encoding.config.first,
        shift=encoding.config.centre == "own-token",
        causal=encoding.shape.causal,
    )


@bias.register
def _(encoding: FIRE, x: Array, qpos: Array, kpos: Array) -> Array:
    return oracle.fire_bias(
        c=encoding.c.item(),
        L_mult=encoding.length_multiplier.item(),
        L0=encoding.config.length,
        W1=array(encoding.inner.weight),
        b1=array(encoding.inner.bias),
        W2=array(encoding.outer.weight),
        b2=array(encoding.outer.bias),
        qpos=qpos,
        kpos=kpos,
        negative_slope=LEAK[encoding.config.activation],
    )


@bias.register(CABLE)
@bias.register(CABLENW)
@bias.register(KCABLE)
def _(encoding: CABLE | CABLENW | KCABLE, x: Array, qpos: Array, kpos: Array) -> Array:
    weights, kernel = {}, "none"
    if isinstance(encoding, KCABLE):
        kernel = "bias" if encoding.config.weights == "inside" else "sums"
    if encoding.weight is not None:
        weights = {"U": array(encoding.weight.weight), "c": array(encoding.weight.bias)}
    return oracle.cable_bias(
        x,
        array(encoding.increment.weight),
        array(encoding.increment.bias),
        qpos,
        kpos,
        **weights,
        increments=encoding.config.increments,
        kernel=kernel,
        causal=encoding.shape.causal,
    )


@bias.register
def _(encoding: FoX, x: Array, qpos: Array, kpos: Array) -> Array:
    heads = encoding.shape.heads
    W, b = array(encoding.gate.weight), array(encoding.gate.bias)
    left = oracle.fox_bias(x, W[:heads], b[:heads], qpos, kpos)
    if encoding.shape.causal:
        return left
    # The gates after the query up to the key: the causal sum with query and key exchanged.
    right = np.swapaxes(oracle.fox_bias(x, W[heads:], b[heads:], kpos, kpos), 2, 3)
    own = oracle.own_key(qpos, kpos)
    return np.where(np.isnan(left), right[:, :, own], left)


def reading(
    encoding: Encoding, q: Array, k: Array, x: Array, qpos: Array, kpos: Array
) -> Array | None:
    """The additive bias, [h t s] or [b h t s], of encodings that may read queries and keys."""
    config, scale, shape = encoding.config, factor(encoding), encoding.shape
    if isinstance(encoding, Shaw):
        right = (0 if shape.causal else 8) if config.right is None else config.right
        return oracle.shaw_bias(q, array(encoding.table), config.left, right, qpos, kpos, scale)
    if isinstance(encoding, TransformerXL):
        learned = (
            array(encoding.content),
            array(encoding.position),
            array(encoding.project.weight),
        )
        fields = {"layout": config.layout, "base": config.base, "clamp": config.clamp}
        return oracle.xl_bias(q, k, *learned, qpos, kpos, scale, **fields)
    if isinstance(encoding, DeBERTa):
        rows = array(encoding.rows)
        if encoding.row_norm is not None:
            spread = np.sqrt(rows.var(-1, keepdims=True) + 1e-7)
            rows = (rows - rows.mean(-1, keepdims=True)) / spread
            rows = rows * array(encoding.row_norm.weight) + array(encoding.row_norm.bias)
        made = [
            None
            if each is None
            else (rows @ array(each.weight).T + array(each.bias))
            .reshape(len(rows), shape.heads, -1)
            .transpose(1, 0, 2)
            for each in (encoding.key, encoding.query)
        ]
        sizes = config.buckets, config.max_distance
        return oracle.deberta_bias(q, k, *made, *sizes, qpos, kpos, scale)
    if isinstance(encoding, Inkling):
        r = x[:, len(kpos) - len(qpos) :] @ array(encoding.project.weight).T
        if encoding.project.bias is not None:
            r = r + array(encoding.project.bias)
        r = r.reshape(*r.shape[:2], shape.heads, -1).transpose(0, 2, 1, 3)
        return oracle.inkling_bias(r, array(encoding.bank), qpos, kpos)
    if isinstance(encoding, GRAPE):
        slopes = oracle.alibi_slopes(shape.heads, "fairseq")
        if encoding.path is not None:
            p = x @ array(encoding.path.weight).T
            p = p.reshape(*p.shape[:2], shape.heads, -1).transpose(0, 2, 1, 3)
            return oracle.grape_path_bias(p, slopes, qpos, kpos)
        u, w = (None if each is None else array(each) for each in (encoding.u, encoding.w))
        return oracle.grape_bias(q, k, slopes, array(encoding.omega), u, w, qpos, kpos)
    return bias(encoding, x, qpos, kpos)


def factor(encoding: Encoding) -> float:
    """What q.k is multiplied by."""
    e, config = encoding.shape.head_dim, encoding.config
    if isinstance(encoding, DeBERTa):
        return ((3 if config.terms == "both" else 2) * e) ** -0.5
    if isinstance(encoding, Inkling) and config.qk_scale == "head_dim":
        return 1 / e
    return e**-0.5


@singledispatch
def turned(encoding: Encoding, x: Array, at: Array, role: str) -> Array:
    """Queries or keys after rotation."""
    return x


@turned.register
def _(encoding: RoPE, x: Array, at: Array, role: str) -> Array:
    config, R = encoding.config, encoding.dims
    L0, f = config.trained_length or encoding.shape.train_length, config.factor
    theta = {
        "none": lambda: oracle.rope_frequencies(R, config.base),
        "linear": lambda: oracle.linear_frequencies(R, f, config.base),
        "ntk": lambda: oracle.ntk_frequencies(R, f, config.base),
        "dynamic": lambda: oracle.dynamic_ntk_frequencies(R, f, max(at) + 1, L0, config.base),
        "yarn": lambda: oracle.yarn_frequencies(R, f, L0, config.base),
        "llama3": lambda: oracle.llama3_frequencies(R, f, L0, config.base),
    }[config.scaling]()
    factor = oracle.yarn_factor(f) if config.scaling == "yarn" else 1.0
    pairing = "half" if config.pairing == "halves" else "interleaved"
    return oracle.rotate(x, at, theta, pairing=pairing, factor=factor)


@turned.register
def _(encoding: XPos, x: Array, at: Array, role: str) -> Array:
    pairing = "half" if encoding.config.pairing == "halves" else "interleaved"
    scale_base, base = encoding.config.scale_base, encoding.config.base
    return oracle.xpos_rotate(x, at, role=role, pairing=pairing, scale_base=scale_base, base=base)


@turned.register
def _(encoding: GRAPEMultiplicative, x: Array, at: Array, role: str) -> Array:
    # The index form; a negative angle is a negative position.
    frequency = np.exp(array(encoding.log_frequency) / 16)
    return oracle.rotate(x, -at, frequency, pairing="half")


@singledispatch
def angles(encoding: Encoding, x: Array) -> Array | None:
    """The angles of every token, [b h s m], where tokens have angles of their own."""
    return None


@angles.register
def _(encoding: SelectiveRoPE, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    maps = array(encoding.down.weight), array(encoding.up.weight), array(encoding.taps)
    return oracle.selective_angles(x, *maps, theta)


@angles.register
def _(encoding: CARoPE, x: Array) -> Array:
    config, pairs = encoding.config, encoding.shape.head_dim // 2
    first, own = config.first_power, config.own == "counted"
    return oracle.carope_angles(x, array(encoding.frequency.weight), pairs, first=first, own=own)


@angles.register
def _(encoding: RePo, x: Array) -> Array:
    theta = oracle.rope_frequencies(encoding.shape.head_dim, encoding.config.base)
    maps = (array(each.weight) for each in (encoding.gate, encoding.content, encoding.final))
    return oracle.repo_angles(x, *maps, theta)


@angles.register
def _(encoding: GRAPEMultiplicative, x: Array) -> Array | None:
    if encoding.step is None:
        return None
    step = array(encoding.step.weight), array(encoding.step.bias)
    found = oracle.grape_angles(
        x, *step, np.exp(array(encoding.log_frequency)), encoding.config.increments
    )
    return np.repeat(found, encoding.shape.heads // found.shape[1], axis=1)


def path(encoding: PaTH, q: Array, k: Array, x: Array, qpos: Array, kpos: Array) -> Array:
    """PaTH's scores, with the gates' sum if it has gates."""
    b, s, _ = x.shape
    heads, e = encoding.shape.heads, encoding.shape.head_dim
    raw = x @ array(encoding.down.weight).T @ array(encoding.up.weight).T
    raw = oracle.convolve(raw.reshape(b, s, heads, e).transpose(0, 2, 1, 3), array(encoding.taps))
    w = raw * oracle.sigmoid(raw)
    w = w / np.sqrt((w**2).sum(-1, keepdims=True))
    beta = x @ array(encoding.strength.weight).T + array(encoding.strength.bias)
    beta = 2 * oracle.sigmoid(beta).transpose(0, 2, 1)
    scores = oracle.path_scores(q, k, w, beta, qpos, kpos)
    if encoding.forget is None:
        return scores
    gate = array(encoding.forget.weight), array(encoding.forget.bias)
    return scores + oracle.fox_bias(x, *gate, qpos, kpos) / e**0.5


def wall(encoding: Wall, q: Array, k: Array, x: Array, qpos: Array, kpos: Array) -> Array:
    """Wall's scores, with the scalar gates' sum if it has them."""
    b, s, _ = x.shape
    logits = x @ array(encoding.gate.weight).T + array(encoding.gate.bias)
    logits = logits.reshape(b, s, encoding.shape.heads, -1).transpose(0, 2, 1, 3)
    g_max = encoding.config.g_max
    gate = np.exp(g_max * (oracle.sigmoid(logits) ** (1 / g_max) - 1))
    scores = oracle.wall_scores(q, k, gate, qpos, kpos)
    if encoding.forget is None:
        return scores
    scalar = array(encoding.forget.weight), array(encoding.forget.bias)
    return scores + oracle.fox_bias(x, *scalar, qpos, kpos)


def expected(encoding: Encoding, q: Array, k: Array, x: Array, qpos: Array, kpos: Array) -> Array:
    """Final scores by the formula."""
    if encoding.moves_keys:
        between = path if isinstance(encoding, PaTH) else wall
        return between(encoding, q, k, x, qpos, kpos)
    angle = angles(encoding, x)
    if angle is not None:
        pairing = getattr(encoding.config, "pairing", "halves").replace("halves", "half")
        own = oracle.own_key(qpos, kpos)
        turned_q = oracle.turn(q, angle[:, :, own], pairing=pairing)
        return oracle.content_scores(turned_q, oracle.turn(k, angle, pairing=pairing))
    if isinstance(encoding, CoPE):
        table, whole = array(encoding.table), encoding.config.divide == "sum"
        return oracle.cope_scores(q, k, table, qpos, kpos, scale_positions=whole)
    if isinstance(encoding, PoPE):
        phase, base = array(encoding.phase), encoding.config.base
        return oracle.pope_scores(q, k, phase, qpos, kpos, base=base)
    if isinstance(encoding, KerpleWeight):
        p, a = 2 * oracle.sigmoid(array(encoding.raw_p)), array(encoding.raw_a.exp())
        weight = oracle.kerple_power_weight(p, a, qpos, kpos, causal=encoding.shape.causal)
        return oracle.content_scores(q, k) * weight
    base = encoding.base if isinstance(encoding, DAPE | DAPEv2) else encoding
    rotated = turned(base, q, qpos, "query"), turned(base, k, kpos, "key")
    A, B = oracle.content_scores(*rotated, factor(base)), reading(base, q, k, x, qpos, kpos)
    if base is encoding:
        return A if B is None else A + B
    network = {
        "W1": array(encoding.inner.weight),
        "b1": array(encoding.inner.bias),
        "W2": array(encoding.outer.weight),
        "b2": array(encoding.outer.bias),
    }
    if isinstance(encoding, DAPE):
        return oracle.dape_scores(A, B, **network, add_bias=encoding.config.base_bias == "added")
    seen = oracle.visible_pairs(qpos, kpos, causal=encoding.shape.causal)
    boundary, window = encoding.config.boundary, encoding.config.window
    if window is None:
        return oracle.dapev2_scores(A, B, **network, visible=seen, boundary=boundary)
    # Each query convolves the keys of its window alone, as if there were no others.
    found = np.full(A.shape, np.nan)
    seen = oracle.windowed(qpos, kpos, window)
    for row in range(len(qpos)):
        rows, cols = slice(row, row + 1), slice(int(seen[row].argmax()), None)
        found[:, :, rows, cols] = oracle.dapev2_scores(
            A[:, :, rows, cols],
            None if B is None else B[..., rows, cols],
            **network,
            visible=seen[rows, cols],
            boundary=boundary,
        )
    return found


def temperature(encoding: Encoding, at: Array) -> Array | None:
    """The factor on the scores of each query, [1 h t]."""
    config, n0 = encoding.config, encoding.config.temperature_start or encoding.shape.train_length
    growth = {
        "none": lambda: None,
        "llama4": lambda: 1 + config.temperature_rate * np.log(1 + np.floor((at + 1) / n0)),
        "ministral": lambda: 1 + config.temperature_rate * np.log(1 + np.floor(at / n0)),
        "inkling": lambda: 1 + config.temperature_rate * np.log(np.maximum((at + 1) / n0, 1)),
        "ssmax": lambda: np.log(
            at % config.chunk + 1 if config.chunk else np.minimum(at + 1, config.window or np.inf)
        ),
    }[config.temperature]()
    if growth is None:
        return None
    scale = np.ones(1) if encoding.ssmax is None else array(encoding.ssmax)
    return (scale[:, None] * growth)[None] * np.ones((1, encoding.shape.heads, 1))


def expected_embedding(encoding: Encoding, x: Array, at: Array) -> Array:
    """Embeddings x [b t d] with their positions added."""
    if isinstance(encoding, Learned):
        table = array(encoding.table.weight)
        return oracle.learned_embedding(x, table, at + encoding.config.offset)
    assert isinstance(encoding, Sinusoidal)
    scale = encoding.config.scale if encoding.scale is None else encoding.scale.item()
    config = encoding.config
    return x + oracle.sinusoidal_embedding(
        at, x.shape[-1], layout=config.layout, scale=scale, base=config.base, offset=config.offset
    )


def formula(factory: Factory, heads: int, length: int, past: int = 0, start: int = 0) -> None:
    """The scores are the oracle's, for a text that starts at any position, after `past` keys."""
    encoding = factory(shape(heads)).double()
    randomise(encoding)
    keys = past + length
    at = torch.arange(start, start + keys)[None]
    x = draw(2, keys, heads * HEAD_DIM, seed=1)
    where, rows_at = at[0].numpy(), at[0, past:].numpy()
    if encoding.at_input:
        ours = encoding.embed(x[:, past:], at[:, past:])
        theirs = expected_embedding(encoding, x[:, past:].numpy(), rows_at)
        require_same(ours.detach(), torch.from_numpy(theirs), "embeddings")
        return
    q = draw(2, heads, length, HEAD_DIM, seed=2)
    k, v = (draw(2, heads, keys, HEAD_DIM, seed=seed) for seed in (3, 4))
    with torch.no_grad():
        found = reference.scores(prepare(encoding, q, k, v, x, Positions(at[:, past:], at)))
    theirs = expected(encoding, q.numpy(), k.numpy(), x.numpy(), rows_at, where)
    config, at_q = encoding.config, rows_at.astype(float)
    pairs = oracle.visible_pairs(rows_at, where)
    if config.window is not None:
        pairs = oracle.windowed(rows_at, where, config.window)
    if config.chunk is not None:
        pairs = oracle.chunked(rows_at, where, config.chunk)
    assert np.array_equal(found.visible[0, 0].numpy(), pairs), "the window or chunk differs"
    theirs = oracle.shaped(theirs, temperature(encoding, at_q), config.softcap)
    if config.sink:
        weights = oracle.softmax_with_sink(theirs, pairs, array(encoding.sink_score))
        require_same(found.weights, torch.from_numpy(weights), "weights beside a sink")
    if isinstance(encoding, StickBreaking):
        attended, rest = config.current == "attended", config.remainder == "own"
        weights = oracle.stick_weights(theirs, pairs, attended=attended, rest=rest)
        require_same(found.weights, torch.from_numpy(weights), "weights of a broken stick")
    seen = found.visible.expand_as(found.final)
    assert not np.isnan(theirs[seen.numpy()]).any()
    require_same(found.final[seen], torch.from_numpy(theirs)[seen], "scores and their formula")
