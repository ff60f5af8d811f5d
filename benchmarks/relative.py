"""Encodings whose bias reads queries and keys: against SDPA, and against transformers' eager code.

    python -m benchmarks.relative [--length 4096] [--rounds 5] [--cpu] [--out benchmarks/results]

Batch 1, 12 heads of 64. First, each encoding's bias and native attention, forward and backward, as
ratios to torch's bias-free causal scaled_dot_product_attention. Then the attention of transformers'
DeBERTa-v2 and XLNet, eager, against ours with the same parameters: how many times faster ours is,
forward alone and with backward, from q, k and v on (what is projected of positions included) and
for the layer with its projections of tokens.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Step, peak_megabytes, ratios, times
from headscape.call.positions import Positions
from headscape.encodings import Encoding, build
from headscape.kernels.assemble import prepare
from headscape.kernels.native import adapter, ops

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
            out = adapter.run(prepare(encoding, q, k, v, x, where))
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


Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Layer:
    """The same attention twice, from q, k, v [1 h t e]."""

    project: Callable[[Tensor], Heads]
    theirs: Callable[[Tensor, Tensor, Tensor], Tensor]
    ours: Callable[[Tensor, Tensor, Tensor], Tensor]
    learned: list[Tensor]


def deberta(length: int) -> Layer:
    """DeBERTa-v3: shared projections, 256 buckets."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2 import modeling_deberta_v2 as peers

    config = DebertaV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, relative_attention=True,
        position_buckets=256, max_relative_positions=512, share_att_key=True,
        pos_att_type=["c2p", "p2c"],
    )  # fmt: skip
    peer = peers.DisentangledSelfAttention(config).eval()
    rows = torch.randn(512, WIDTH)
    encoding = _bidirectional("deberta", length, share_att_key=True)
    encoding.rows = nn.Parameter(rows, requires_grad=False)
    where = peers.build_relative_position(
        torch.empty(length, 1), torch.empty(length, 1), bucket_size=256, max_position=512
    )
    scale = peers.scaled_size_sqrt(torch.empty(HEAD_DIM), 3)

    def heads(linear: nn.Module, x: Tensor) -> Tensor:
        return linear(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(-2, -3)

    def project_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        return heads(peer.query_proj, x), heads(peer.key_proj, x)

    def project(x: Tensor) -> Heads:
        return *project_rows(x), heads(peer.value_proj, x)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q[0], k[0], v[0]
        scores = torch.bmm(q, k.mT / scale)
        scores = scores + peer.disentangled_attention_bias(q, k, where, rows, 3)
        return torch.bmm(scores.softmax(-1), v)[None]

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return adapter.run(
            prepare(encoding, q, k, v, None, Positions.span(length), project=project_rows)
        )

    return Layer(project, theirs, ours, list(peer.parameters()))


class Projection(nn.Module):
    """XLNet's projection of sinusoids, [d h e], as the weight of a linear layer."""

    def __init__(self, r: nn.Parameter) -> None:
        super().__init__()
        self.r = r

    @property
    def weight(self) -> Tensor:
        """[h e, d]."""
        return self.r.flatten(1).T


def xlnet(length: int) -> Layer:
    """XLNet without memory and segments."""
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    model = XLNetModel(
        XLNetConfig(d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=8, vocab_size=8)
    ).eval()
    peer = model.layer[0].rel_attn
    waves = model.relative_positional_encoding(length, length, bsz=1)
    encoding = _bidirectional("transformer-xl", length)
    encoding.content, encoding.position = peer.r_w_bias, peer.r_r_bias
    encoding.project = Projection(peer.r)

    def project(x: Tensor) -> Heads:
        q, k, v = (torch.einsum("bih,hnd->bnid", x, each) for each in (peer.q, peer.k, peer.v))
        return q, k, v

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        by_distance = torch.einsum("ibh,hnd->ibnd", waves, peer.r)
        heads = (x.permute(2, 0, 1, 3) for x in (q, k, v))
        return peer.rel_attn_core(*heads, by_distance).permute(1, 2, 0, 3)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return adapter.run(prepare(encoding, q, k, v, None, Positions.span(length)))

    learned = [peer.q, peer.k, peer.v, peer.r, peer.r_w_bias, peer.r_r_bias]
    return Layer(project, theirs, ours, learned)


def _bidirectional(name: str, length: int, **fields: object) -> Encoding:
    return build(
        name, heads=HEADS, head_dim=HEAD_DIM, width=WIDTH, train_length=length, causal=False,
        **fields,
    )  # fmt: skip


def speedups(
    layer: Layer, length: int, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """How many times faster ours is, and the peak MB of both."""
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    upstream = torch.randn(1, HEADS, length, HEAD_DIM)
    given = [y.detach().requires_grad_() for y in layer.project(x)]
    theirs, ours = layer.theirs(*given), layer.ours(*given)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)

    def step(run: Callable[..., Tensor], what: str) -> Step:
        def attend() -> Tensor:
            return run(*(layer.project(x) if "layer" in what else given))

        def both() -> object:
            return torch.autograd.grad(
                attend(), [*given, x, *layer.learned], upstream, allow_unused=True
            )

        return both if "backward" in what else torch.no_grad()(attend)

    found = {}
    for what in ("forward", "forward + backward", "layer", "layer + backward"):
        steps = {"ours": step(layer.ours, what), "theirs": step(layer.theirs, what)}
        found[what] = ratios(times(steps, rounds, clock), "ours")["theirs"]
    for name, run in (("theirs", layer.theirs), ("ours", layer.ours)):
        found[f"peak MB, {name}"] = peak_megabytes(step(run, "backward"))
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
        for what, value in speedups(
            make(args.layer_length), args.layer_length, args.rounds, clock
        ).items():
            rows.append({"length": args.layer_length, "name": name, "what": what, "value": value})
            print(f"{args.layer_length:>6}  {name:<16} {what:<22} {value:.2f}", flush=True)
    for name, ratio in ratios(times(encodings(args.length), args.rounds, clock), FLOOR).items():
        rows.append({"length": args.length, "name": name, "what": "ratio", "value": ratio})
        print(f"{args.length:>6}  {name:<16} {ratio:.2f}", flush=True)
    machine = {"instructions": ops.instructions(), "threads": torch.get_num_threads()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "relative.json").write_text(json.dumps({"machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
