"""Packs of trained runs, or of random factors, and one page that shows them: for looking at the viewer.

    python test/make_page.py OUT.html RUN...                      every run's own text, 512 tokens
    python test/make_page.py OUT.html --length 4096 RUN...
    python test/make_page.py OUT.html --random 16384 12 64        one layer of random factors

`--half` stores q and k in float16. `headscape view` makes such pages for users; this script is for
work on the viewer alone and writes what headscape/arrays/factors.py describes.
"""

import argparse
import base64
import json
import zlib
from html import escape
from pathlib import Path

import numpy as np

STATIC = Path(__file__).parents[2] / "src/headscape/page/static"


def pack(header, arrays):
    """The bytes of a pack."""
    size, directory = 65536 + 2 * len(json.dumps(header)), []
    offset = -(-(12 + size) // 16) * 16
    for name, value in arrays.items():
        directory.append(
            {
                "name": name,
                "dtype": value.dtype.name,
                "shape": list(value.shape),
                "offset": offset,
                "bytes": value.nbytes,
            }
        )
        offset += -(-value.nbytes // 16) * 16
    text = json.dumps({**header, "arrays": directory}).encode()
    out = bytearray(offset)
    out[:12] = b"HSPACK01" + len(text).to_bytes(4, "little")
    out[12 : 12 + len(text)] = text
    for entry, value in zip(directory, arrays.values(), strict=True):
        out[entry["offset"] : entry["offset"] + entry["bytes"]] = np.ascontiguousarray(value).tobytes()
    return bytes(out)


def log_sum_exp(final):
    """Over visible keys of [h t t], hidden ones -inf."""
    top = final.max(-1, keepdims=True)
    return (top + np.log(np.exp(final - top).sum(-1, keepdims=True)))[..., 0]


def of_run(folder, length):
    """Header and arrays of a training run on its own validation text."""
    import torch

    from headscape import bias as kinds
    from headscape.attention.reference import scores
    from headscape.train import Run

    run = Run.open(folder)
    text = Path(__file__).read_text() * 40
    tokens = np.asarray(run.tokenizer.encode(text)[:length], dtype=np.int64)
    got, arrays, factors = {}, {}, []
    with torch.no_grad():
        run.model.hidden(torch.tensor(tokens)[None], watch=lambda layer, one: got.update({layer: one}))
        for number, one in got.items():
            put = lambda name, value, to=np.float32: arrays.__setitem__(  # noqa: E731
                f"layer.{number}.{name}", np.asarray(value.detach().to(torch.float64).numpy(), to)
            )
            q, k = one.unrotated or (one.q, one.k)
            put("q", q[0])
            put("k", k[0])
            kind = {"scale": float(one.scale), "group": 1, "pairing": None, "bias": None, "mix": None}
            if one.encoding.rotates:
                turned(run, one, put, kind, length)
            b, e = one.bias, one.encoding
            if isinstance(b, kinds.Toeplitz):
                kind["bias"] = {"kind": "toeplitz", "zero": b.zero}
                put("bias.table", b.table)
            elif isinstance(b, kinds.Slope):
                kind["bias"] = {"kind": "slope", "weighted": b.weight is not None}
                put("bias.row", b.row[0], np.float64)
                put("bias.col", b.col[0], np.float64)
                if b.weight is not None:
                    put("bias.weight", b.weight[0], np.float64)
            elif isinstance(b, kinds.Perceptron):
                kind["bias"] = {"kind": "perceptron", "zero": b.zero, "leak": b.leak}
                for name in ("near", "in_weight", "in_bias", "out_weight", "out_bias"):
                    put(f"bias.{name}", getattr(b, name))
                put("bias.far", b.far[0])
            if e.mixes:
                c = e.config
                kind["mix"] = {"kind": "dapev2", "kernel": c.kernel, "boundary": c.boundary}
                for name in ("inner", "outer"):
                    put(f"mix.{name}.weight", getattr(e, name).weight[:, :, 0])
                    put(f"mix.{name}.bias", getattr(e, name).bias)
            lse = [
                torch.logsumexp(every.final.double().masked_fill(~every.visible, -torch.inf), -1)
                for every in (scores(one, slice(r, min(length, r + 256))) for r in range(0, length, 256))
            ]
            put("lse", torch.cat(lse, -1)[0], np.float64)
            factors.append(kind)
    config = run.model.config
    return {
        "format": 1,
        "title": Path(folder).name,
        "encoding": config.encoding,
        "causal": True,
        "length": length,
        "layers": list(got),
        "heads": list(range(config.heads)),
        "factors": factors,
        "pieces": [run.tokenizer.decode(tokens[i : i + 1]) for i in range(length)],
    }, arrays


def turned(run, one, put, kind, length):
    """cos and sin of a rotation, from what it does to (1, 0)."""
    import torch

    e, at = one.q.shape[-1], torch.arange(length)[None]
    pairing = one.encoding.conventions().get("pairing", "interleaved")
    probe = torch.zeros(1, 1, length, e, dtype=torch.float64)
    first = slice(0, e, 2) if pairing == "interleaved" else slice(0, e // 2)
    second = slice(1, e, 2) if pairing == "interleaved" else slice(e // 2, e)
    probe[..., first] = 1
    for role, name in (("query", "q"), ("key", "k")):
        out = one.encoding.rotate(probe, at, role)[0, 0]
        put(f"turn.{name}", torch.stack([out[:, first], out[:, second]]))
    kind["pairing"] = pairing


def at_random(length, heads, dim):
    """Header and arrays of one layer of random factors with a CABLE-like bias."""
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((heads, length, dim), dtype=np.float32) for _ in range(2))
    total = -np.cumsum(rng.random((heads, length)) * np.geomspace(0.002, 0.2, heads)[:, None], axis=1)
    lse = np.empty((heads, length))
    for h in range(heads):
        for r in range(0, length, 512):
            i = np.arange(r, min(length, r + 512))
            final = q[h, i] @ k[h, : i[-1] + 1].T * np.float32(dim**-0.5)
            final = final + (total[h, i, None] - total[h, None, : i[-1] + 1]).astype(np.float32)
            final[np.arange(i[-1] + 1) > i[:, None]] = -np.inf
            lse[h, i] = log_sum_exp(final.astype(np.float64)[None])[0]
    header = {
        "format": 1,
        "title": f"random {length}",
        "encoding": "cable-nw",
        "causal": True,
        "length": length,
        "layers": [0],
        "heads": list(range(heads)),
        "factors": [
            {
                "scale": dim**-0.5,
                "group": 1,
                "pairing": None,
                "bias": {"kind": "slope", "weighted": False},
                "mix": None,
            }
        ],
        "pieces": [f" word{i % 97}" for i in range(length)],
    }
    names = {"q": q, "k": k, "bias.row": total, "bias.col": total, "lse": lse}
    return header, {f"layer.0.{name}": value for name, value in names.items()}


def page(packs):
    """One HTML file."""
    module = (STATIC / "viewer.js").read_text().replace("as openPage", "as openPage")
    blocks = []
    for number, (header, arrays) in enumerate(packs):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = base64.b64encode(packer.compress(pack(header, arrays)) + packer.flush()).decode()
        blocks.append(
            f'<script type="application/octet-stream" data-pack="p{number}" '
            f'data-title="{escape(header["title"])}">{data}</script>'
        )
    name = module.rsplit("export{", 1)[1].split(" as openPage")[0].split(",")[-1]
    script = module.rsplit("export{", 1)[0] + f'{name}(document.getElementById("viewer"))'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>viewer</title></head><body><main id=viewer></main>{''.join(blocks)}"
        f'<script type="module">{script}</script></body></html>'
    )


def main():
    """Read the arguments and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--random", type=int, nargs=3)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--steps", action="store_true")
    given = parser.parse_args()
    packs = [of_run(run, given.length) for run in given.runs]
    if given.random:
        packs.append(at_random(*given.random))
    for number, (header, arrays) in enumerate(packs):
        if given.steps:
            header["step"] = 100 * number
        if given.half:
            header["precision"] = "float16"
            for name in [name for name in arrays if name.endswith((".q", ".k")) and "turn" not in name]:
                arrays[name] = arrays[name].astype(np.float16)
    given.out.write_text(page(packs))
    print(given.out, given.out.stat().st_size)


if __name__ == "__main__":
    main()
