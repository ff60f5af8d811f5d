"""The table of docs/choosing.md, from the measured results and costs.

python -m docs.site.choosing

Growth comes from docs/results.md and cost from docs/data/costs.json; what a cache keeps and who
runs it elsewhere are the words below.
"""

import json
import re
from pathlib import Path

from docs.site.encoding_pages import growth

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/choosing.md"
START, END = "<!-- choosing -->", "<!-- /choosing -->"
EVERYWHERE = "any flash kernel, vLLM, SGLang, llama.cpp"
ALIBI = "flash-attn 2, vLLM and llama.cpp for the models that have it"
FLEX = "here; torch's FlexAttention, not tried on a GPU"
OURS = "here; elsewhere no fused kernel with gradients was found"
ROWS: dict[str, tuple[str, str, str]] = {
    "RoPE": ("rope", "nothing", EVERYWHERE),
    "RoPE:window=128": ("rope", "the last 128 tokens only", EVERYWHERE),
    "NoPE": ("nope", "nothing", "any flash kernel; engines for models with such layers"),
    "Learnable": ("nope", "nothing", EVERYWHERE),
    "ALiBi": ("alibi", "nothing", ALIBI),
    "T5-bias": ("t5", "nothing", "sdpa with the bias written out, FlexAttention; no flash kernel"),
    "Kerple": ("kerple", "nothing", FLEX),
    "Fire": ("fire", "nothing", FLEX),
    "CABLE": ("cable", "one number per head and token", FLEX),
    "BAM": ("bam", "nothing", FLEX),
    "Transformer-XL": ("transformer-xl", "nothing", OURS),
    "Stick-breaking": ("stick-breaking", "nothing", "its authors' Triton kernel"),
    "PaTH": ("path", "older keys change at every token", "its authors' Triton kernel"),
    "DAPEv2+Kerple": ("dapev2+kerple", "nothing", "here; mixes heads, so no flash kernel can"),
}
"""By title in the results: name in the costs, what a cache keeps besides keys and values, runs"""


def table() -> str:
    """Return the table as Markdown."""
    results = (ROOT / "docs/results.md").read_text()
    costs = json.loads((ROOT / "docs/data/costs.json").read_text())["ratios"]
    first, second = _first(results), growth(results)
    lines = [
        "| encoding | growth at 8x | part | time | a cache also keeps | who runs it |",
        "|---|---:|---:|---:|---|---|",
    ]
    for title, (name, cache, runs) in ROWS.items():
        if title in first:
            grown, part = first[title], "1"
        else:
            grown, part = second[title][4], "2"
        cost = "-" if title == "RoPE:window=128" else f"{costs[name]['2048']:.2f}"
        lines.append(f"| {title} | {grown} | {part} | {cost} | {cache} | {runs} |")
    return "\n".join(lines)


def _first(results: str) -> dict[str, str]:
    """Growth at 8 times the length in the first part, by method."""
    section = results.partition("## Growth past")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([^|`]+?) \| [^|]+ \| [^|]+ \| ([\d.-]+) \|", section, re.MULTILINE)
    return {name: grown for name, grown in cells if name != "method"}


def write() -> None:
    """Put the table between the two marks of the page."""
    text = PAGE.read_text()
    before, rest = text.split(START)
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    write()
