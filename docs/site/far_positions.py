"""The picture of far positions: a bar per remedy, from the table of docs/measured/diagnose.md.

python -m docs.site.far_positions docs/images/far-positions.svg
"""

import argparse
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "measured/diagnose.md"
ROW = re.compile(
    r"^\| ([^|]+) \| [\d.]+ \| ([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] \|$", re.MULTILINE
)
MANNER = {"svg.fonttype": "none", "svg.hashsalt": "far", "font.size": 8}


def rows() -> dict[str, tuple[float, float, float]]:
    """Return nats more than without the gap by remedy: mean and the ends of its interval."""
    section = PAGE.read_text().split("far positions alone\n", 1)[1]
    found = ROW.findall(section)
    return {name: (float(mean), float(low), float(high)) for name, mean, low, high in found}


def draw(path: Path) -> None:
    """Write the picture as SVG, the same bytes for the same table."""
    with mpl.rc_context(MANNER):
        figure = Figure(figsize=(6.4, 2.7), layout="constrained", facecolor="white")
        ax = figure.subplots()
        found = rows()
        for row, (name, (mean, low, high)) in enumerate(found.items()):
            colour = "tab:red" if name.startswith("far") else "tab:blue"
            ax.barh(row, mean, xerr=[[mean - low], [high - mean]], color=colour, capsize=2)
            ax.text(high + 0.05, row, f"{mean:.3f}", va="center")
        ax.set_yticks(range(len(found)), list(found))
        ax.invert_yaxis()
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel("more loss than at known positions (nats, 95% interval)")
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
