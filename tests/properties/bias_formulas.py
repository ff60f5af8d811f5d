"""The additive bias of encodings that do not read queries and keys, by the oracle."""

from functools import singledispatch

import numpy as np

import oracle
from headscape.encodings import Encoding
from headscape.encodings.alibi import ALiBi
from headscape.encodings.bam import BAM
from headscape.encodings.cable import CABLE, CABLENW, KCABLE
from headscape.encodings.fire import FIRE, LEAK
from headscape.encodings.fox import FoX
from headscape.encodings.grid_table import GridTable
from headscape.encodings.kerple import Kerple, KerplePower
from headscape.encodings.sandwich import Sandwich
from headscape.encodings.t5 import T5, T5Clipped
from headscape.encodings.wavlm import WavLM
from properties.rotation_formulas import Array, array


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


POWER = {"one": 0.0, "sqrt_head_dim": 0.5, "inverse_sqrt_head_dim": -0.5}


@bias.register
def _(encoding: T5, x: Array, qpos: Array, kpos: Array) -> Array:
    return oracle.t5_bias(
        array(encoding.table.weight),
        qpos,
        kpos,
        M=encoding.config.max_distance,
        bidirectional=not encoding.shape.causal,
        factor=encoding.shape.head_dim ** POWER[encoding.config.multiplier],
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
def _(encoding: GridTable, x: Array, qpos: Array, kpos: Array) -> Array:
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
    stored = array(encoding.raw_power)
    power = np.exp(stored) if encoding.config.shape_stored == "logarithm" else stored
    return oracle.bam_bias(array(encoding.scale), power, loc, qpos, kpos)


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
