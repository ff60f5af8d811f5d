"""What each encoding's scores are by the oracle, with the weights and conventions of a module.

`expected(encoding, q, k, x, qpos, kpos)` gives final scores [b h t s], NaN where no value is
defined. A subclass is compared with its parent's formula, so a broken subclass fails. `formula` is
the property that a module computes them.
"""

import numpy as np
import torch

import oracle
from headscape.call import definition
from headscape.call.positions import Positions
from headscape.encodings import Encoding
from headscape.encodings.combined import Combined
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.encodings.deberta import DeBERTa
from headscape.encodings.grape import GRAPE
from headscape.encodings.inkling import Inkling
from headscape.encodings.kerple import KerpleWeight
from headscape.encodings.learned import Learned
from headscape.encodings.path import PaTH
from headscape.encodings.pope import PoPE
from headscape.encodings.shaw import Shaw
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.encodings.stick_breaking import StickBreaking
from headscape.encodings.transformer_xl import TransformerXL
from headscape.encodings.wall import Wall
from headscape.kernels.assemble import prepare
from headscape.properties.probe import HEAD_DIM, Factory, draw, randomise, require_same, shape
from properties.bias_formulas import bias
from properties.rotation_formulas import Array, angles, array, turned


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
        sizes = config.buckets, None if config.bucketing == "none" else config.max_distance
        return oracle.deberta_bias(q, k, *made, *sizes, qpos, kpos, scale)
    if isinstance(encoding, Inkling):
        r = x[:, len(kpos) - len(qpos) :] @ array(encoding.project.weight).T
        if encoding.project.bias is not None:
            r = r + array(encoding.project.bias)
        r = r.reshape(*r.shape[:2], shape.heads, -1).transpose(0, 2, 1, 3)
        if encoding.gain is not None:
            r = oracle.clipped(r * array(encoding.gain)[:, None], config.clip)
        return oracle.inkling_bias(r, array(encoding.bank), qpos, kpos)
    if isinstance(encoding, GRAPE):
        slopes = oracle.alibi_slopes(shape.heads, "fairseq")
        if encoding.path is not None:
            p = x @ array(encoding.path.weight).T
            p = p.reshape(*p.shape[:2], shape.heads, -1).transpose(0, 2, 1, 3)
            return oracle.grape_path_bias(p, slopes, qpos, kpos)
        u, w = (None if each is None else array(each) for each in (encoding.u, encoding.w))
        unit = config.unit_key, config.unit_query
        return oracle.grape_bias(q, k, slopes, array(encoding.omega), u, w, qpos, kpos, unit)
    return bias(encoding, x, qpos, kpos)


def factor(encoding: Encoding) -> float:
    """What q.k is multiplied by."""
    e, config = encoding.shape.head_dim, encoding.config
    if isinstance(encoding, DeBERTa):
        return ((3 if config.terms == "both" else 2) * e) ** -0.5
    if isinstance(encoding, Inkling) and config.qk_scale == "head_dim":
        return 1 / e
    return e**-0.5


def path(encoding: PaTH, q: Array, k: Array, x: Array, qpos: Array, kpos: Array) -> Array:
    """PaTH's scores, with the gates' sum if it has gates."""
    b, s, _ = x.shape
    heads, e = encoding.shape.heads, encoding.shape.head_dim
    low = x if encoding.down is None else x @ array(encoding.down.weight).T
    w = (low @ array(encoding.up.weight).T).reshape(b, s, heads, e).transpose(0, 2, 1, 3)
    if encoding.taps is not None:
        w = oracle.convolve(w, array(encoding.taps))
        w = w if encoding.tap_bias is None else w + array(encoding.tap_bias)[:, None]
        w = w * oracle.sigmoid(w)
    w = w / np.sqrt((w**2).sum(-1, keepdims=True) + 1e-6)
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


def content_and_bias(
    encoding: Encoding, q: Array, k: Array, x: Array, qpos: Array, kpos: Array
) -> tuple[Array, Array | None]:
    """The scores that a bias is added to, and the bias."""
    given = q, k, x, qpos, kpos
    if isinstance(encoding, Combined):
        # One part at most does anything but add, and the formulas of the others are their biases.
        (more, *rest) = sorted(encoding.parts, key=only_adds)
        if only_adds(more):
            A, rest = oracle.content_scores(q, k, factor(encoding)), [more, *rest]
        else:
            A = expected(more, *given)
        return A, sum(reading(part, *given) for part in rest)
    rotated = turned(encoding, q, qpos, "query"), turned(encoding, k, kpos, "key")
    return oracle.content_scores(*rotated, factor(encoding)), reading(encoding, *given)


def only_adds(encoding: Encoding) -> bool:
    """Whether all that an encoding does is to add a bias."""
    moves = isinstance(encoding, PaTH | Wall)
    return not (encoding.rotates or encoding.mixes or encoding.weighs or moves)


def expected(encoding: Encoding, q: Array, k: Array, x: Array, qpos: Array, kpos: Array) -> Array:
    """Final scores by the formula."""
    if isinstance(encoding, PaTH | Wall):
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
    A, B = content_and_bias(base, q, k, x, qpos, kpos)
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
        "affine": lambda: np.log(at + 1),
    }[config.temperature]()
    if growth is None:
        return None
    if encoding.log_rate is not None:
        rate, offset = (array(x)[:, None] for x in (encoding.log_rate, encoding.log_offset))
        return (rate * growth + offset)[None]
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
        found = definition.scores(prepare(encoding, q, k, v, x, Positions(at[:, past:], at)))
    config, at_q = encoding.config, rows_at.astype(float)
    heat, asking = temperature(encoding, at_q), q.numpy()
    if config.temperature_on == "content":
        asking, heat = asking * heat[..., None], None
    theirs = expected(encoding, asking, k.numpy(), x.numpy(), rows_at, where)
    pairs = oracle.visible_pairs(rows_at, where)
    if config.window is not None:
        pairs = oracle.windowed(rows_at, where, config.window)
    if config.chunk is not None:
        pairs = oracle.chunked(rows_at, where, config.chunk)
    assert np.array_equal(found.visible[0, 0].numpy(), pairs), "the window or chunk differs"
    theirs = oracle.shaped(theirs, heat, config.softcap)
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
