"""Time and memory of attention with every encoding, as ratios to bias-free causal SDPA.

    python -m benchmarks.attention OUT [--lengths 512 1024] [--encodings alibi fire] [--rounds 7]

12 heads of 64, float32, batch 1, as many threads as torch takes. All contenders run in one process,
in turn, and a ratio is the median over rounds of that round's ratio, so drift of the machine falls
on both sides. Memory is the peak of resident memory above its level before the call. Inputs that
belong to the layer and not to attention (CABLE's running sums) are leaves: their gradient is taken,
their making is not timed. Writes OUT/attention.json and OUT/attention.md.
"""

import argparse
import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headscape.attention import native, torch_blocks
from headscape.attention.reference import Inputs
from headscape.bias import Slope
from headscape.encodings import Encoding, build
from headscape.native import library
from headscape.types import Positions, Visible

HEADS, HEAD_DIM = 12, 64
FLOOR = "sdpa"
NATIVE = ["rope", "alibi", "t5", "kerple", "cable", "fox", "fire", "dape+kerple", "dapev2+kerple"]
TORCH = ["alibi", "kerple", "cable"]
Step = Callable[[], object]


def contender(
    path: Callable[..., Tensor], found: Encoding, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Step, list[Tensor]]:
    """A call that runs attention forward, and everything its backward must reach."""
    where = Positions.span(q.shape[2])
    stream = found.stream(torch.randn(1, q.shape[2], found.shape.width))
    leaves = list(found.parameters())
    fixed = None
    if stream is not None:
        total = stream.total.detach().requires_grad_()
        weight = None if stream.weight is None else stream.weight.detach().requires_grad_()
        fixed = Slope(weight, total, total)
        leaves = [total] if weight is None else [total, weight]

    def run() -> Tensor:
        bias = fixed or found.bias(where)
        return path(Inputs(q, k, v, found, bias, where, Visible(), HEAD_DIM**-0.5))

    return run, leaves


def contenders(length: int, names: list[str]) -> dict[str, tuple[Step, list[Tensor]]]:
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    found: dict[str, tuple[Step, list[Tensor]]] = {
        FLOOR: (lambda: scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])
    }
    paths = [("native", native.attend, NATIVE), ("torch", torch_blocks.attend, TORCH)]
    for label, path, served in paths:
        for name in served:
            if name not in names:
                continue
            encoding = build(
                name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=512
            )
            run, leaves = contender(path, encoding, q, k, v)
            found[f"{name} {label}"] = run, [q, k, v, *leaves]
    return found


def backward(run: Step, leaves: list[Tensor], upstream: Tensor) -> Step:
    return lambda: torch.autograd.grad(run(), leaves, upstream, allow_unused=True)


def without_grad(run: Step) -> Step:
    def step() -> object:
        with torch.no_grad():
            return run()

    return step


def times(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step in every round, after one round to warm up."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn:
                found[name].append(time.perf_counter() - start)
    return found


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def peak_megabytes(step: Step) -> float:
    """How far resident memory rises during the step."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return (_status("VmHWM") - before) / 1024


def measure(length: int, names: list[str], rounds: int) -> list[dict[str, object]]:
    found = contenders(length, names)
    upstream = torch.randn(1, HEADS, length, HEAD_DIM)
    passes: dict[str, dict[str, Step]] = {
        "forward": {n: without_grad(run) for n, (run, _) in found.items()},
        "both": {n: backward(run, leaves, upstream) for n, (run, leaves) in found.items()},
    }
    rows: list[dict[str, object]] = []
    for passed, steps in passes.items():
        seconds = times(steps, rounds)
        for name, own in seconds.items():
            ratios = [a / b for a, b in zip(own, seconds[FLOOR], strict=True)]
            rows.append(
                {
                    "length": length, "pass": passed, "name": name,
                    "milliseconds": 1e3 * statistics.median(own),
                    "ratio": statistics.median(ratios),
                    "megabytes": peak_megabytes(steps[name]),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """One row per contender, one column per length: ratio to SDPA, and megabytes."""
    lines = []
    lengths = sorted({int(str(r["length"])) for r in rows})
    for passed, title in (("both", "Forward and backward"), ("forward", "Forward")):
        lines += [f"## {title}", "", "| | " + " | ".join(map(str, lengths)) + " |"]
        lines += ["|---" * (len(lengths) + 1) + "|"]
        cells = {(r["name"], r["length"]): r for r in rows if r["pass"] == passed}
        for name in dict.fromkeys(r["name"] for r in rows):
            shown = [
                f"{cells[name, n]['ratio']:.2f} ({cells[name, n]['megabytes']:.0f} MB)"
                for n in lengths
            ]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--encodings", nargs="+", default=NATIVE)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [r for n in options.lengths for r in measure(n, options.encodings, options.rounds)]
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {
        "instructions": library.instructions(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    (options.out / "attention.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    (options.out / "attention.md").write_text(f"{machine}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
