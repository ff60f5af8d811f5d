"""Memory and time of evaluating a model on one long window, per encoding.

    python -m benchmarks.evaluation                        GPT-2 Small at 16,384 tokens
    python -m benchmarks.evaluation --layers 2             two of its layers, sooner
    python -m benchmarks.evaluation --preset nano --length 4096 --encodings alibi rope

Each encoding runs in a process of its own. `peak` is the largest resident memory during the
evaluation above the resident memory once weights are loaded, which holds activations, attention's
workspace, blocks of logits and everything the allocator kept. Weights are random: memory and time
do not depend on them. A layer's memory is free again before the next one, so a few layers stand
for all. Linux only, as the peak is read and reset through /proc.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.timing import peak_megabytes

LIMIT_GIB = 3e9 / 2**30
ENCODINGS = (
    "nope", "rope", "alibi", "t5", "t5-clipped", "kerple", "fire", "cable", "cable-nw",
    "dapev2+kerple", "dapev2+cable",
)  # fmt: skip


def measure(preset_name: str, layers: int | None, encoding: str, length: int) -> dict[str, object]:
    import torch

    from headscape.gpt2 import GPT2, preset
    from headscape.models.load import load

    torch.manual_seed(0)
    fewer = {} if layers is None else {"layers": layers}
    gpt2 = GPT2(preset(preset_name, encoding=encoding, train_length=512, **fewer))
    model = load(gpt2)
    window = torch.randint(gpt2.config.vocabulary, (1, length + 1))
    losses: list[float] = []
    begun = time.perf_counter()
    peak = peak_megabytes(lambda: losses.append(model.losses(window, 0).mean().item()))
    seconds = time.perf_counter() - begun
    return {
        "encoding": encoding,
        "layers": gpt2.config.layers,
        "weights_gib": sum(value.numel() * 4 for value in gpt2.parameters()) / 2**30,
        "peak_gib": peak / 1024,
        "seconds": seconds,
        "loss": losses[0],
        "threads": torch.get_num_threads(),
    }


def markdown(rows: list[dict[str, object]], preset_name: str, length: int) -> str:
    shape = f"{rows[0]['layers']} layers, one window of {length:,} tokens"
    lines = [
        f"{preset_name}, {shape}, float32, {rows[0]['threads']} threads",
        "",
        "| encoding | peak over weights, GiB | within 3 GB | seconds | tokens/s |",
        "|---|---:|---|---:|---:|",
    ]
    for row in rows:
        peak, seconds = float(str(row["peak_gib"])), float(str(row["seconds"]))
        within = "yes" if peak <= LIMIT_GIB else "NO"
        name = row["encoding"]
        lines.append(f"| {name} | {peak:.2f} | {within} | {seconds:.0f} | {length / seconds:.0f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--layers", type=int, help="fewer than the preset's")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--encodings", nargs="+", default=ENCODINGS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.preset, args.layers, args.one, args.length)))
        return
    rows = []
    shape = ["--preset", args.preset, "--length", str(args.length)]
    shape += [] if args.layers is None else ["--layers", str(args.layers)]
    for encoding in args.encodings:
        command = [sys.executable, "-m", "benchmarks.evaluation", *shape, "--one", encoding]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{encoding} failed: {done.stderr.strip().splitlines()[-1]}")
        rows.append(json.loads(done.stdout))
        print(rows[-1], file=sys.stderr, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    layers = "" if args.layers is None else f"-{args.layers}-layers"
    stem = args.out / f"evaluation-{args.preset}{layers}-{args.length}"
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = markdown(rows, args.preset, args.length)
    stem.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
