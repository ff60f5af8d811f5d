"""Time and memory of attention with every encoding, as ratios to bias-free causal SDPA.

    python -m benchmarks.attention OUT [--lengths 512 1024] [--encodings alibi fire] [--rounds 5]
                                [--fused] [--cpu]

12 heads of 64, float32, batch 1, as many threads as torch takes. Contenders: the floor (torch's
scaled_dot_product_attention), our native and torch paths, the dense reference, x-transformers and
transformers (benchmarks/peers.py). All run in one process, in turn (benchmarks/timing.py), the
fused paths and the rest apart. The dense reference stops at 2048 tokens, the peers and the torch
path at 4096; at 16384 only forward is timed. Inputs that belong to the layer and not to attention
(CABLE's running sums) are leaves: their gradient is timed, computing them is not. `nope` is
also RoPE's core: what is left once q and k are turned. From 4096 tokens on there are half as many
rounds, and one for what writes out matrices from 2048 on. `--fused` leaves out what writes out
matrices. `--cpu` counts the process's own CPU time, for a machine that other jobs share; use it
with OMP_NUM_THREADS=1. Writes OUT/attention.json, .md, .png and .svg.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.peers import peers
from benchmarks.plots import plot
from benchmarks.timing import Step, peak_megabytes, ratios, times
from headscape.call import definition
from headscape.call.bias import Slope
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerContext, LayerInput, build
from headscape.kernels import torch_blocks
from headscape.kernels.native import adapter, ops

HEADS, HEAD_DIM = 12, 64
FLOOR = "sdpa"
ENCODINGS = [
    "nope", "alibi", "t5", "kerple", "cable", "fox", "fire", "dape+kerple", "dapev2+kerple",
]  # fmt: skip
TORCH = {"nope", "alibi", "t5", "kerple", "cable", "fox"}
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
DENSE, PEERS, BACKWARD = 2048, 4096, 8192
"""The longest contexts of the reference, of peers and the torch path, and of backward."""
Contender = tuple[Step, list[Tensor]]
Clock = Callable[[], float]


def contender(
    path: Callable[..., Tensor], found: Encoding, q: Tensor, k: Tensor, v: Tensor
) -> Contender:
    """A call that runs attention forward, and everything its backward must reach."""
    where = Positions.span(q.shape[2])
    stream = found.stream(LayerInput(torch.randn(1, q.shape[2], found.shape.width)))
    leaves = list(found.parameters())
    fixed = None
    if stream is not None:
        total = stream.total.detach().requires_grad_()
        weight = None if stream.weight is None else stream.weight.detach().requires_grad_()
        fixed = Slope(weight, total, total)
        leaves = [total] if weight is None else [total, weight]

    def run() -> Tensor:
        layer = LayerContext(where)
        bias = fixed or found.bias(layer)
        mixing = found.mixing(layer)
        return path(AttentionCall(q, k, v, bias, where, Visible(), HEAD_DIM**-0.5, mixing=mixing))

    return run, [q, k, v, *leaves]


def contenders(length: int, names: list[str]) -> list[dict[str, Contender]]:
    """Two sets, each with a floor: our fused paths, and what writes out matrices.

    Apart, because the memory that the second set goes through would leave cold caches to the first.
    """
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    floor = (lambda: scaled_dot_product_attention(q, k, v, is_causal=True)), [q, k, v]
    fused: dict[str, Contender] = {FLOOR: floor}
    others: dict[str, Contender] = {f"{FLOOR} beside matrices": floor}
    for name in names:
        encoding = build(
            name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=512
        )
        fused[f"{name} native"] = contender(adapter.run, encoding, q, k, v)
        if name in TORCH and length <= PEERS:
            fused[f"{name} torch"] = contender(torch_blocks.run, encoding, q, k, v)
        if length <= DENSE:
            others[f"{name} dense"] = contender(definition.run, encoding, q, k, v)
    if length <= PEERS:
        for name, (call, leaves) in peers(HEADS, HEAD_DIM, length).items():
            others[name] = (lambda call=call: call(q, k, v)), [q, k, v, *leaves]
    return [fused, others]


def backward(run: Step, leaves: list[Tensor], upstream: Tensor) -> Step:
    return lambda: torch.autograd.grad(run(), leaves, upstream, allow_unused=True)


def without_grad(run: Step) -> Step:
    def step() -> object:
        with torch.no_grad():
            return run()

    return step


def measure(
    length: int, names: list[str], rounds: int, clock: Clock, *, only_fused: bool
) -> list[dict[str, object]]:
    fused, others = contenders(length, names)
    # A long call averages the machine's moods by itself, and many-fold ratios need no precision.
    found = of_set(fused, length, rounds if length < PEERS else max(2, rounds // 2), clock)
    if len(others) > 1 and not only_fused:
        found += of_set(others, length, rounds if length < DENSE else 1, clock)
    return found


def of_set(
    found: dict[str, Contender], length: int, rounds: int, clock: Clock
) -> list[dict[str, object]]:
    upstream = torch.randn(1, HEADS, length, HEAD_DIM)
    passes: dict[str, dict[str, Step]] = {
        "forward": {n: without_grad(run) for n, (run, _) in found.items()}
    }
    if length <= BACKWARD:
        passes["both"] = {n: backward(run, leaves, upstream) for n, (run, leaves) in found.items()}
    rows: list[dict[str, object]] = []
    for passed, steps in passes.items():
        seconds = times(steps, rounds, clock)
        ratio = ratios(seconds, next(iter(found)))
        for name, own in seconds.items():
            rows.append(
                {
                    "length": length, "passes": passed, "name": name, "ratio": ratio[name],
                    "milliseconds": 1e3 * statistics.median(own),
                    "megabytes": peak_megabytes(steps[name]),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """One row per contender, one column per length: ratio to SDPA, and megabytes."""
    lines = []
    for passed, title in (("both", "Forward and backward"), ("forward", "Forward")):
        cells = {(r["name"], r["length"]): r for r in rows if r["passes"] == passed}
        lengths = sorted({int(str(length)) for _, length in cells})
        lines += [f"## {title}", "", "| | " + " | ".join(map(str, lengths)) + " |"]
        lines += ["|---" * (len(lengths) + 1) + "|"]
        for name in dict.fromkeys(name for name, _ in cells):
            shown = [cells.get((name, n)) for n in lengths]
            text = [
                "-" if c is None else f"{c['ratio']:.2f} ({c['megabytes']:.0f} MB)" for c in shown
            ]
            lines.append(f"| {name} | " + " | ".join(text) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--encodings", nargs="+", default=ENCODINGS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    clock = time.process_time if options.cpu else time.perf_counter
    given = options.encodings, options.rounds, clock
    rows = [r for n in options.lengths for r in measure(n, *given, only_fused=options.fused)]
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {
        "instructions": ops.instructions(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    (options.out / "attention.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    (options.out / "attention.md").write_text(f"{machine}\n\n{table(rows)}")
    plot(rows, FLOOR, options.out)


if __name__ == "__main__":
    main()
