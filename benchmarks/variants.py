"""The cost of windows, sinks, softcaps, temperatures, biases, weights, grouped heads and bfloat16.

    python -m benchmarks.variants [--lengths 4096] [--rounds 5] [--out benchmarks/results]

Forward and backward of the native path, 12 heads of 64, batch 1, as ratios to torch's bias-free
causal scaled_dot_product_attention on the same tensors in the same process (benchmarks/timing.py);
`bfloat16` is forward alone, against SDPA in bfloat16. With --cpu the clock is the process's own
time, which neighbours on a busy machine disturb less; use it with one thread (OMP_NUM_THREADS=1).

With random scores a stick is used up after a few hundred keys, and the kernel reads no farther ones
(`sticks`). With scores around -7 it lasts for all keys (`sticks that last`).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Step, ratios, times
from headscape.call.bias import RelativeCurves, Toeplitz
from headscape.call.definition import AttentionCall
from headscape.call.mixing import Product
from headscape.call.positions import Positions, Visible
from headscape.call.weighting import Sticks
from headscape.kernels.native import adapter, ops

HEADS, HEAD_DIM, GROUPS = 12, 64, 3
LOW = 7.5
"""One dim of queries and of negated keys, for scores around -7."""
FLOOR = "sdpa"


def steps_of(length: int) -> dict[str, Step]:
    """Every variant, and the floor."""
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    few = [x[:, :GROUPS].detach().clone().requires_grad_() for x in (k, v)]
    upstream, where = torch.randn(1, HEADS, length, HEAD_DIM), Positions.span(length)
    sticks = Sticks(takes_own=False, keeps_rest=True)
    low = [x.detach().clone() for x in (q, k)]
    low[0][..., 0], low[1][..., 0] = LOW, -LOW
    low = [x.requires_grad_() for x in low]
    table = torch.randn(HEADS, length, requires_grad=True)
    sink = torch.zeros(HEADS, requires_grad=True)
    temperature = torch.rand(1, 1, length) + 0.5

    def ours(
        bias: object = None, visible: Visible | None = None, leaves: tuple[Tensor, ...] = (),
        keys: list[Tensor] | None = None, query: Tensor = q, **given: object,
    ) -> Step:  # fmt: skip
        own = [k, v] if keys is None else keys

        def step() -> object:
            inputs = AttentionCall(
                query, *own, bias, where, visible or Visible(), HEAD_DIM**-0.5, **given
            )  # fmt: skip
            out = adapter.run(inputs)
            return torch.autograd.grad(out, [query, *own, *leaves], upstream)

        return step

    def sheared(rank: int) -> Step:
        r = torch.randn(1, HEADS, length, rank, requires_grad=True)
        basis = (torch.randn(1, rank, 1024) / rank**0.5).requires_grad_()
        return ours(RelativeCurves(r, basis, 0), leaves=(r, basis))

    def floor(heads: Callable[[], tuple[Tensor, ...]]) -> Step:
        return lambda: torch.autograd.grad(
            scaled_dot_product_attention(*heads(), is_causal=True), [q, k, v], upstream
        )

    return {
        FLOOR: floor(lambda: (q, k, v)),
        "none": ours(),
        "window 512": ours(visible=Visible(window=512)),
        "sink": ours(sink=sink, leaves=(sink,)),
        "softcap 50": ours(softcap=50.0),
        "temperature": ours(temperature=temperature),
        "toeplitz": ours(Toeplitz(table, 0), leaves=(table,)),
        "toeplitz, temperature": ours(Toeplitz(table, 0), leaves=(table,), temperature=temperature),
        "table that multiplies": ours(mixing=Product(Toeplitz(table, 0)), leaves=(table,)),
        "sticks": ours(weighting=sticks),
        "sticks that last": ours(query=low[0], keys=[low[1], v], weighting=sticks),
        "sheared, rank 16": sheared(16),
        "sheared, rank 64": sheared(64),
        f"{HEADS} heads on {GROUPS}": ours(keys=few),
    }


def half_steps(length: int) -> dict[str, Step]:
    """bfloat16, forward alone."""
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM).bfloat16() for _ in range(3))
    inputs = AttentionCall(
        q, k, v, None, Positions.span(length), Visible(), HEAD_DIM**-0.5
    )  # fmt: skip
    return {
        "sdpa, bfloat16": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "bfloat16": lambda: adapter.run(inputs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="time of the process, not of the wall")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    torch.manual_seed(0)
    clock = time.process_time if args.cpu else time.perf_counter
    rows = []
    for length in args.lengths:
        found = ratios(times(steps_of(length), args.rounds, clock), FLOOR)
        with torch.no_grad():
            halves = times(half_steps(length), args.rounds, clock)
        found |= {"bfloat16, forward": ratios(halves, "sdpa, bfloat16")["bfloat16"]}
        for name, ratio in found.items():
            rows.append({"length": length, "name": name, "ratio": ratio})
            print(f"{length:>6}  {name:<24} {ratio:.2f}", flush=True)
    machine = {"instructions": ops.instructions(), "threads": torch.get_num_threads()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "variants.json").write_text(json.dumps({"machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
