"""Whether this tree computes the numbers of a different checkout, to the last bit.

    python -m benchmarks.same_numbers ../other

The other tree trains a small model with each encoding of the paper's figures. This tree trains the
same ones, and both read the other tree's checkpoints: the arrays of the figures (content, bias,
final scores and weights of every head and layer) and the losses of an evaluation at three lengths.
Printed per encoding is the largest difference, relative to the largest magnitude of the array, and
"equal" where every bit is the same. Only commands and names that both trees have are used.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MODELS: dict[str, list[str]] = {
    "cable": [],
    "dapev2+cable": [],
    "kerple": [],
    "dapev2+kerple": [],
    "alibi": [],
    "fire": [],
    "t5-clipped": ["--scale", "width"],
    "rope": ["--field", "pairing=interleaved"],
}
"""The encodings of figures 8 to 15, and their options of `headscape train`."""
TRAINING = [
    *("--tokenizer", "bytes", "--context-length", "128", "--batch-size", "4"),
    *("--tokens-per-step", "512", "--steps", "20", "--seed", "0"),
]
QUANTITIES = ("content", "bias", "final", "weights")
LENGTHS = (64, 128, 512)


def train(encoding: str, corpus: Path, out: Path, environment: dict[str, str]) -> None:
    """Train one small model with the tree of `environment`."""
    command = [
        *(sys.executable, "-m", "headscape.cli", "train", "--out", str(out)),
        *("--corpus", str(corpus), "--encoding", encoding, *MODELS[encoding], *TRAINING),
    ]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def read(run: Path, out: Path) -> None:
    """Write the figures' arrays and the evaluation of one run."""
    import headscape as hs

    model = hs.load(str(run))
    capture = model.capture(length=128, seed=3, layers="all")
    arrays = {
        f"{quantity}.{layer}": getattr(capture, quantity)(layer=layer)
        for quantity in QUANTITIES
        for layer in capture.layers
    }
    table = hs.evaluate(model, lengths=LENGTHS, limit=4096)
    losses = [row.loss for row in table.rows]
    assert len(losses) == len(LENGTHS)
    np.savez(out, **arrays, losses=np.array(losses, dtype=np.float64))


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference, relative to the largest finite magnitude."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    finite = np.isfinite(theirs)
    assert np.array_equal(finite, np.isfinite(ours)), "other entries are masked"
    if not finite.any():
        return 0.0
    return float(np.abs(ours[finite] - theirs[finite]).max() / np.abs(theirs[finite]).max())


def main() -> None:
    """Print the differences per encoding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, nargs="?", help="folder of a different checkout")
    parser.add_argument("--read", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(*arguments.read)
        return
    if arguments.other is None or not (arguments.other / "src" / "headscape").is_dir():
        parser.error("give the folder of a checkout that contains src/headscape")
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        # Only one thread: sums over threads are not in a fixed order.
        common = {**os.environ, "OMP_NUM_THREADS": "1", "HEADSCAPE_CACHE": str(work / "cache")}
        trees = {"ours": root, "theirs": arguments.other.resolve()}
        environments = {
            name: {**common, "PYTHONPATH": str(tree / "src")} for name, tree in trees.items()
        }
        corpus = work / "corpus.txt"
        corpus.write_text("".join(p.read_text() for p in sorted((root / "docs").glob("*.md"))))
        for encoding in MODELS:
            results = {}
            for runs, reads in (("theirs", "theirs"), ("theirs", "ours"), ("ours", "ours")):
                run = work / f"{encoding}-{runs}"
                if not run.exists():
                    train(encoding, corpus, run, environments[runs])
                out = work / f"{encoding}-{runs}-{reads}.npz"
                subprocess.run([sys.executable, __file__, "--read", str(run), str(out)],
                               env=environments[reads], check=True)  # fmt: skip
                results[runs, reads] = dict(np.load(out))
            before = results["theirs", "theirs"]
            for title, after in (("same checkpoint", results["theirs", "ours"]),
                                 ("trained again", results["ours", "ours"])):  # fmt: skip
                parts = []
                for kind in (*QUANTITIES, "losses"):
                    names = [name for name in before if name.partition(".")[0] == kind]
                    assert names, kind
                    if all(np.array_equal(after[n], before[n], equal_nan=True) for n in names):
                        parts.append(f"{kind} equal")
                    else:
                        worst = max(difference(after[n], before[n]) for n in names)
                        parts.append(f"{kind} {worst:.1e}")
                print(f"{encoding:14} {title:16} {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
