"""Encodings whose bias reads queries and keys: against SDPA, and against transformers' eager code.

    python -m benchmarks.relative [--length 4096] [--rounds 5] [--cpu] [--out benchmarks/results]

Batch 1, 12 heads of 64. First, each encoding's bias and native attention, forward and backward, as
ratios to torch's bias-free causal scaled_dot_product_attention. Then whole attention layers of
transformers (DeBERTa-v2, XLNet), eager, against the same layer around our attention, with the same
projections and parameters: how many times faster ours is, forward alone and with backward.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Step, peak_megabytes, ratios, times
from headscape.attention.layer import prepare
from headscape.attention.native import adapter, library
from headscape.encodings import Encoding, build
from headscape.types import Positions

HEADS, HEAD_DIM = 12, 64
WIDTH = HEADS * HEAD_DIM
FLOOR = "sdpa"
SUBJECTS: dict[str, tuple[str, dict[str, object]]] = {
    "inkling": ("inkling", {"extent": 1024}),
    "shaw": ("shaw", {}),
    "transformer-xl": ("transformer-xl", {}),
    "deberta": ("deberta", {}),
    "grape, by key": ("grape", {}),
    "grape, by both": ("grape", {"gate": "both"}),
}


def encodings(length: int) -> dict[str, Step]:
    """Every encoding's attention, forward and backward, and the floor."""
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    x, upstream = torch.randn(1, length, WIDTH), torch.randn(1, HEADS, length, HEAD_DIM)
    where = Positions.span(length)

    def ours(encoding: Encoding) -> Step:
        def step() -> object:
            out = adapter.attend(prepare(encoding, q, k, v, x, where))
            return torch.autograd.grad(out, [q, k, v, *encoding.parameters()], upstream)

        return step

    def floor() -> object:
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(out, [q, k, v], upstream)

    made = {
        name: build(
            kind, heads=HEADS, head_dim=HEAD_DIM, width=WIDTH, train_length=length, **fields
        )
        for name, (kind, fields) in SUBJECTS.items()
    }
    return {FLOOR: floor} | {name: ours(encoding) for name, encoding in made.items()}


Layer = tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor]]
"""Theirs, ours, and the parameters that both read."""


def deberta(length: int) -> Layer:
    """One self-attention of DeBERTa-v3: shared projections, 256 buckets."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = DebertaV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, relative_attention=True,
        position_buckets=256, max_relative_positions=512, share_att_key=True,
        pos_att_type=["c2p", "p2c"],
    )  # fmt: skip
    peer = DisentangledSelfAttention(config).eval()
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    rows = torch.randn(512, WIDTH)
    seen = torch.ones(1, 1, length, length, dtype=torch.bool)
    ours = _bidirectional("deberta", length, share_att_key=True)
    ours.rows = nn.Parameter(rows)

    def heads(linear: nn.Module, given: Tensor) -> Tensor:
        return linear(given).unflatten(-1, (HEADS, HEAD_DIM)).transpose(-2, -3)

    def attend() -> Tensor:
        q, k, v = (heads(each, x) for each in (peer.query_proj, peer.key_proj, peer.value_proj))
        inputs = prepare(
            ours, q, k, v, None, Positions.span(length),
            project=lambda given: (heads(peer.query_proj, given), heads(peer.key_proj, given)),
        )  # fmt: skip
        return adapter.attend(inputs).transpose(1, 2).flatten(2)

    def theirs() -> Tensor:
        return peer(x, seen, rel_embeddings=rows)[0]

    return theirs, attend, [x, *peer.parameters()]


def xlnet(length: int) -> Layer:
    """One self-attention of XLNet, up to the heads' results."""
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    model = XLNetModel(
        XLNetConfig(d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=8, vocab_size=8)
    ).eval()
    peer = model.layer[0].rel_attn
    for name in ("q", "k", "v", "r"):
        nn.init.normal_(getattr(peer, name), std=0.02)
    x = torch.randn(length, 1, WIDTH, requires_grad=True)
    r = model.relative_positional_encoding(length, length, bsz=1)
    ours = _bidirectional("transformer-xl", length)
    learned = [peer.q, peer.k, peer.v, peer.r, peer.r_w_bias, peer.r_r_bias]
    ours.content, ours.position = peer.r_w_bias, peer.r_r_bias

    def attend() -> Tensor:
        q, k, v = (torch.einsum("ibh,hnd->bnid", x, each) for each in (peer.q, peer.k, peer.v))
        ours.project = lambda waves: waves @ peer.r.flatten(1)
        return adapter.attend(prepare(ours, q, k, v, None, Positions.span(length)))

    def theirs() -> Tensor:
        q, k, v = (torch.einsum("ibh,hnd->ibnd", x, each) for each in (peer.q, peer.k, peer.v))
        by_distance = torch.einsum("ibh,hnd->ibnd", r, peer.r)
        return peer.rel_attn_core(q, k, v, by_distance).permute(1, 2, 0, 3)

    del ours.project
    return theirs, attend, [x, *learned]


def _bidirectional(name: str, length: int, **fields: object) -> Encoding:
    return build(
        name, heads=HEADS, head_dim=HEAD_DIM, width=WIDTH, train_length=length, causal=False,
        **fields,
    )  # fmt: skip


def speedups(layer: Layer, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """How many times faster ours is, and the peak MB of theirs and ours."""
    theirs, ours, learned = layer
    torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-3)
    upstream = torch.randn_like(theirs())

    def backward(run: Callable[[], Tensor]) -> Step:
        return lambda: torch.autograd.grad(run(), learned, upstream, allow_unused=True)

    def forward(run: Callable[[], Tensor]) -> Step:
        return torch.no_grad()(run)

    found = {}
    for name, wrap in (("forward", forward), ("forward and backward", backward)):
        steps = {"ours": wrap(ours), "theirs": wrap(theirs)}
        found[name] = ratios(times(steps, rounds, clock), "ours")["theirs"]
    found["peak MB, theirs"] = peak_megabytes(backward(theirs))
    found["peak MB, ours"] = peak_megabytes(backward(ours))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layer-length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="time of the process, not of the wall")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    torch.manual_seed(0)
    clock = time.process_time if args.cpu else time.perf_counter
    rows = []
    for name, make in (("deberta-v2", deberta), ("xlnet", xlnet)):
        for what, value in speedups(make(args.layer_length), args.rounds, clock).items():
            rows.append({"length": args.layer_length, "name": name, "what": what, "value": value})
            print(f"{args.layer_length:>6}  {name:<16} {what:<22} {value:.2f}", flush=True)
    for name, ratio in ratios(times(encodings(args.length), args.rounds, clock), FLOOR).items():
        rows.append({"length": args.length, "name": name, "what": "ratio", "value": ratio})
        print(f"{args.length:>6}  {name:<16} {ratio:.2f}", flush=True)
    machine = {"instructions": library.instructions(), "threads": torch.get_num_threads()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "relative.json").write_text(json.dumps({"machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
