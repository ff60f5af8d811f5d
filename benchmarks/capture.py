"""Time and memory of a long capture, all four quantities reduced to cells.

    python -m benchmarks.capture [--encodings alibi cable dapev2+kerple] [--length 16384]
    python -m benchmarks.capture --of hf:PATH --layers all --length 4096

By default one layer of GPT-2 Small, the first, untrained, on random tokens. Every row is a process
of its own: seconds of the capture alone, and how far resident memory rises above the model's.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import torch

import headscape as hs
from benchmarks.timing import peak_megabytes


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Seconds and megabytes of one capture."""
    [name] = options.encodings
    model = hs.load(
        options.of
        or hs.GPT2.from_preset("small", encoding=name, train_length=512, vocabulary=50_257)
    )
    tokens = np.random.default_rng(0).integers(0, model.spec.vocabulary, options.length)
    layers = "all" if options.layers == "all" else [int(options.layers) - 1]
    seconds: list[float] = []

    def step() -> None:
        start, cpu = time.perf_counter(), time.process_time()
        model.capture(tokens, layers=layers, resolution=options.cells)
        seconds.extend((time.perf_counter() - start, time.process_time() - cpu))

    rise = peak_megabytes(step)
    return {"seconds": seconds[0], "cpu": seconds[1], "megabytes": rise}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encodings", nargs="+", default=["alibi", "cable", "dapev2+kerple"])
    parser.add_argument("--of", help="a run, file or hf: model to capture instead")
    parser.add_argument("--layers", default="1", help="a layer, counted from 1, or all")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--cells", type=int, default=512)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(options)))
        return
    print(
        f"{options.length} tokens, {options.cells} cells a side, {torch.get_num_threads()} threads"
    )
    shared = ["--layers", options.layers, "--length", options.length, "--cells", options.cells]
    for name in options.encodings if options.of is None else [options.of]:
        which = ["--encodings", name] if options.of is None else ["--of", name, "--encodings", "-"]
        command = [sys.executable, "-m", "benchmarks.capture", "--row", *which, *map(str, shared)]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        print(
            f"{name:<16} {found['seconds']:6.1f} s, {found['cpu']:6.1f} s of CPU, "
            f"{found['megabytes']:5.0f} MB above the model",
            flush=True,
        )


if __name__ == "__main__":
    main()
