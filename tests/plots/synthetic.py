"""Captures made of formulas, for tests that need no model."""

import numpy as np

from headscape.captures.capture_file import Capture


def causal(maps):
    length = maps.shape[-1]
    return np.where(np.tri(length, dtype=bool), maps, np.nan).astype(np.float32)


def alibi(heads, length):
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    places = np.arange(length)
    return causal(-slopes[:, None, None] * (places[:, None] - places))


def cable(heads, length, seed):
    steps = np.log1p(np.exp(np.random.default_rng(seed).normal(size=(heads, length)))) / 10
    sums = steps.cumsum(axis=1)
    return causal(sums[:, None, :] - sums[:, :, None])


def scores(heads, length, seed):
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, heads, length, 16))
    angle = np.arange(length)[:, None] * 100.0 ** (-np.arange(8) / 8)
    turn = np.exp(1j * angle)
    q, k = ((x[..., ::2] + 1j * x[..., 1::2] + 0.6) * turn for x in (q, k))
    return causal((q @ k.conj().swapaxes(1, 2)).real / 4)


def softmax(final):
    powers = np.exp(np.where(np.isnan(final), -np.inf, final - np.nanmax(final, -1, keepdims=True)))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def capture(bias, *, encoding="alibi", layers=(0,), seed=0, step=None, trained=False, name=None):
    heads, length, _ = bias.shape
    content = causal(np.random.default_rng(seed).normal(size=bias.shape))
    final = content + bias
    quantities = {"content": content, "bias": bias, "final": final, "weights": softmax(final)}
    words = ["The", " old", " house", " by", " the", " river", ",", " of", " stone", "\n"]
    return Capture(
        encoding=encoding,
        conventions={"slopes": "geometric", "scale": "1/sqrt(e)"},
        claims={"context_dependent": encoding == "cable"},
        model={
            "name": name or encoding,
            "preset": "nano",
            "layers": 6,
            "heads": heads,
            "width": 96,
            "train_length": 256,
            "shows": "final" if encoding == "rope" else "bias",
        },
        layers=tuple(layers),
        heads=tuple(range(heads)),
        length=length,
        sequence={
            "corpus": "embedded",
            "document": 7,
            "offset": 0,
            "seed": 0,
            "pieces": [words[i % len(words)] for i in range(length)],
        },
        provenance={"version": "0.1.0", "run": "alibi-nano", "step": step},
        trained=trained,
        tokens=np.arange(length, dtype=np.int64),
        positions=np.arange(length, dtype=np.int64),
        maps={f"layer.{i}.{name}": x for i in layers for name, x in quantities.items()},
    )
