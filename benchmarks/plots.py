"""Time and memory of attention against length, both on logarithmic axes.

    python -m benchmarks.plots benchmarks/results          draws attention.json again

The floor is black; our native path is drawn in full, the torch path dashed, and what writes out
matrices (the dense reference, other libraries) dotted. A colour is an encoding.
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

COLOURS = {
    "no bias": "0.5", "nope": "C0", "alibi": "C1", "t5": "C2", "kerple": "C3", "cable": "C4",
    "fox": "C5", "fire": "C6", "dape+kerple": "C8", "dapev2+kerple": "C9",
}  # fmt: skip
STYLES = {"native": ("-", 2.0), "torch": ("--", 1.2)}
SHOWN = (
    "sdpa", "nope native", "alibi native", "cable native", "fire native", "dape+kerple native",
    "dapev2+kerple native", "alibi torch", "cable torch", "fire dense", "cable dense",
    "dapev2+kerple dense", "alibi x-transformers", "t5 x-transformers",
    "no bias transformers eager",
)  # fmt: skip
"""Enough to see the shape; the table has the rest."""


def style(name: str, floor: str) -> dict[str, object]:
    if name == floor:
        return {"color": "black", "linewidth": 2.5, "zorder": 5}
    encoding = next(known for known in COLOURS if name.startswith(f"{known} "))
    line, width = STYLES.get(name.removeprefix(f"{encoding} "), (":", 1.6))
    return {"color": COLOURS[encoding], "linestyle": line, "linewidth": width}


def plot(rows: list[dict[str, object]], floor: str, out: Path) -> None:
    """attention.png and attention.svg: forward and backward, time left, memory right."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    axes = figure.subplots(1, 2)
    both = [row for row in rows if row["passes"] == "both"]
    lengths = sorted({int(str(row["length"])) for row in both})
    for name in dict.fromkeys(str(row["name"]) for row in both):
        if name not in SHOWN:
            continue
        own = [row for row in both if row["name"] == name]
        at = [row["length"] for row in own]
        for axis, key in zip(axes, ("milliseconds", "megabytes"), strict=True):
            axis.plot(at, [row[key] for row in own], marker="o", markersize=3, label=name,
                      **style(name, floor))  # fmt: skip
    for axis, title in zip(axes, ("Time, ms", "Peak memory, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="Length, tokens", title=title)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.suptitle("Attention forward and backward: 12 heads of 64, float32, batch 1")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    for suffix in ("png", "svg"):
        figure.savefig(out / f"attention.{suffix}", dpi=150)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    plot(json.loads((folder / "attention.json").read_text())["rows"], "sdpa", folder)
