"""Memory of a long capture: GPT-2 Small, final layer, reduced while it is computed.

    python -m benchmarks.capture --length 16384 --encoding cable

Prints the model's own memory (resident after its weights are made), the peak during the capture,
and their difference, which the design bounds by 2 GB whatever the length.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
from headscape.capture.tap import Request

from headscape.capture.record import Sequence, record
from headscape.gpt2 import GPT2, preset


def resident() -> float:
    """Memory in use now, in GB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--encoding", default="alibi")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--layers", type=int, help="fewer than the preset's: the same peak, sooner")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--quantities", default="content,bias,final,weights")
    options = parser.parse_args()

    fewer = {} if options.layers is None else {"layers": options.layers}
    model = GPT2(
        preset(options.preset, train_length=512, encoding=options.encoding, **fewer)
    ).eval()
    own = resident()
    tokens = np.random.default_rng(0).integers(0, model.config.vocabulary, options.length)
    request = Request(
        layers=(model.config.layers - 1,),
        heads=tuple(range(model.config.heads)),
        quantities=tuple(options.quantities.split(",")),
        resolution=options.resolution,
    )
    start = time.perf_counter()
    record(model, Sequence(tokens, {}), request, preset=options.preset, trained=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        json.dumps(
            {
                "encoding": options.encoding,
                "length": options.length,
                "seconds": round(time.perf_counter() - start, 1),
                "model_gb": round(own, 2),
                "peak_gb": round(peak, 2),
                "above_model_gb": round(peak - own, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
