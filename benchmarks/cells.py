"""Time and memory of one layer's scores reduced to a grid of cells.

    python -m benchmarks.cells [--length 16384] [--cells 512] [--encodings alibi cable ...]

12 heads of 64, all four quantities, random q, k, v; prints seconds of the wall, seconds of CPU and
how far resident memory rises.
"""

import argparse
import time

import numpy as np
import torch

from benchmarks.timing import peak_megabytes
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerInput, build
from headscape.kernels.assemble import assemble
from headscape.kernels.native import ops
from headscape.kernels.native.score_cells import reduce_scores

HEADS, HEAD_DIM = 12, 64


@torch.no_grad()
def inputs_of(name: str, length: int) -> AttentionCall:
    encoding = build(name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=512)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM) for _ in range(3))
    where = Positions.span(length)
    stream = encoding.stream(LayerInput(torch.randn(1, length, HEADS * HEAD_DIM)))
    return assemble(encoding, q, k, v, where, Visible(), streams=(stream, stream), observed=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--cells", type=int, default=512)
    parser.add_argument(
        "--encodings", nargs="+", default=["alibi", "cable", "rope", "dapev2+kerple"]
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    edges = np.arange(args.cells + 1, dtype=np.int64) * args.length // args.cells
    print(f"{ops.instructions()}, {torch.get_num_threads()} threads")
    for name in args.encodings:
        inputs = inputs_of(name, args.length)
        seconds: list[float] = []

        def step(inputs: AttentionCall = inputs, seconds: list[float] = seconds) -> None:
            start, cpu = time.perf_counter(), time.process_time()
            reduce_scores(inputs, edges)
            seconds += [time.perf_counter() - start, time.process_time() - cpu]

        rise = peak_megabytes(step)
        wall, cpu = seconds
        print(f"{name:<16} {wall:6.1f} s, {cpu:6.1f} s of CPU, {rise:5.0f} MB", flush=True)


if __name__ == "__main__":
    main()
