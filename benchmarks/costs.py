"""Time of attention with each encoding over plain attention's, for the pages of the site.

    python -m benchmarks.costs OUT.json [--lengths 512 2048] [--rounds 9] [--threads 1]

Forward and backward of one call, 12 heads of 64, batch 1, float32: rotation, stream, bias and the
path that `auto` chooses, against torch's causal scaled_dot_product_attention. All contenders take
turns in one process (benchmarks/timing.py). Encodings that act at the input are left out: their
attention is NoPE's.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Step, ratios, times
from headscape.encodings import ENCODINGS, WRAPPERS, build
from headscape.kernels.attend import attention
from headscape.kernels.native import ops

HEADS, HEAD_DIM = 12, 64
FLOOR = "sdpa"


def step(name: str, q: Tensor, k: Tensor, v: Tensor, x: Tensor, upstream: Tensor) -> Step:
    """Return one forward and backward call with an encoding."""
    encoding = build(name, heads=HEADS, head_dim=HEAD_DIM, width=x.shape[2], train_length=512)
    leaves = [q, k, v, x, *encoding.parameters()]

    def run() -> object:
        out = attention(q, k, v, encoding=encoding, x=x)
        return torch.autograd.grad(out, leaves, upstream, allow_unused=True)

    return run


def measure(length: int, names: list[str], rounds: int) -> dict[str, float]:
    """Return every encoding's ratio to plain attention at one length."""
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    x = torch.randn(1, length, HEADS * HEAD_DIM, requires_grad=True)
    upstream = torch.randn(1, HEADS, length, HEAD_DIM)

    def floor() -> object:
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(out, [q, k, v], upstream)

    steps: dict[str, Step] = {FLOOR: floor}
    for name in names:
        steps[name] = step(name, q, k, v, x, upstream)
    found = ratios(times(steps, rounds), FLOOR)
    return {name: round(found[name], 2) for name in names}


def processor() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    names = [name for name, kind in ENCODINGS.items() if not kind.at_input]
    names += [f"{wrapper}+kerple" for wrapper in WRAPPERS]
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for length in options.lengths:
        for name, ratio in measure(length, names, options.rounds).items():
            found[name][str(length)] = ratio
            print(length, name, ratio, flush=True)
    report = {
        "command": " ".join(["python -m benchmarks.costs", *sys.argv[1:]]),
        "machine": f"{processor()}, {ops.instructions()}, {options.threads} thread(s), "
        f"torch {torch.__version__}",
        "ratios": found,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
