"""The atlas as one static page: thumbnails, kernel curves and measures of every head.

The page contains its data, its style and one plain ES module, opens from disk and asks the network
for nothing. Text of the model is JSON inside the page and never HTML.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from headscape.io.output_file import GENERATOR
from headscape.measures.definitions import KINDS, MEASURES
from headscape.measures.measures import Measures
from headscape.viewer.build import static_text

POINTS: Final = 48
"""Distances of a drawn kernel on either side of 0."""
POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{generator}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Atlas of {title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}: what position does in every head</h1>
<p class="quiet">{measured}</p>
<h2>Recognised</h2>
<pre>{recognised}</pre>
<p>{kinds}</p>
</header>
<main>
<h2>Ten heads where position matters most</h2>
<p class="quiet">{importance}</p>
<div class="cards" id="most"></div>
<h2>Ten heads where position matters least</h2>
<div class="cards" id="fewest"></div>
<h2>All heads</h2>
<p class="quiet">A card is named layer.head, both counted from 1. Its picture shows mean attention
weights, queries down and keys across; its curve shows the kernel, the mean score at each distance,
on a logarithmic axis. Click a card for all its measures.</p>
<div class="controls">
<label>order <select id="order"></select></label>
<label>measure <select id="sort"></select></label>
<label>kind <select id="kind"></select></label>
<span class="quiet" id="count"></span>
</div>
<p class="quiet" id="meaning"></p>
<div id="all"></div>
</main>
<section>
<h2>Definitions</h2>
<p class="quiet">i query, j key, d = i - j, S score before the softmax, w weight after it. Late
queries are the second half of a sequence, in a bidirectional model the middle half. Every measure
is a mean over sequences, with its 95% bootstrap interval from 6 sequences on.</p>
<div class="wide"><table>
<thead><tr><th scope="col">measure</th><th scope="col">definition</th>
<th scope="col">after</th></tr></thead>
<tbody>
{definitions}
</tbody></table></div>
</section>
<dialog id="head" aria-label="one head"></dialog>
<noscript>This page draws its heads with JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def atlas_page(found: Measures, links: Mapping[tuple[int, int], str] | None = None) -> str:
    """Return the page; `links` are addresses in the viewer by layer and head, from 0."""
    script, style = static_text("atlas.js"), static_text("atlas.css")
    about = found.about
    data = json.dumps(page_data(found, links or {}), allow_nan=False, separators=(",", ":"))
    ranks = MEASURES[found.importance]
    return PAGE.format(
        policy=POLICY.format(script=_digest(script), style=_digest(style)),
        generator=GENERATOR,
        title=escape(about["model"]),
        style=style,
        measured=escape(_measured(about)),
        recognised=escape("\n".join(about["recognised"])),
        kinds=escape(_kinds(found)),
        importance=escape(f"Ranked by {ranks.label}: {ranks.text}"),
        definitions="\n".join(_definition(name) for name in found.values),
        data=data.replace("<", "\\u003c"),
        script=script,
    )


def page_data(found: Measures, links: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    """Return what the page's module draws from."""
    assert found.kernel is not None
    length = (found.kernel.shape[-1] + 1) // 2
    distances = _distances(length, causal=bool(found.about["causal"]))
    at = np.array(distances) + length - 1
    heads = []
    for row in found.rows():
        layer, head = row["layer"], row["head"]
        values = {
            name: [_short(each) for each in estimates[:, layer, head]]
            for name, estimates in found.values.items()
        }
        drift = {
            multiple: {name: _short(float(x[layer, head])) for name, x in measures.items()}
            for multiple, measures in found.drift.items()
            if measures is not None
        }
        one: dict[str, Any] = {
            "layer": layer,
            "head": head,
            "kinds": row["kinds"],
            "values": values,
            "drift": drift,
            "kernel": [_short(each) for each in found.kernel[layer, head, at]],
        }
        if found.closed_form is not None and np.isfinite(found.closed_form[layer, head]).all():
            one["closed"] = [_short(each) for each in found.closed_form[layer, head, at]]
        if found.maps is not None:
            one["map"] = _shades(found.maps[layer, head])
        if (layer, head) in links:
            one["link"] = links[layer, head]
        heads.append(one)
    return {
        "about": {name: found.about[name] for name in ("layers", "heads")},
        "importance": found.importance,
        "measures": [
            {
                "name": name,
                "label": MEASURES[name].label,
                "text": MEASURES[name].text,
                "reference": MEASURES[name].reference,
                "form": MEASURES[name].form,
            }
            for name in found.values
        ],
        "multiples": list(found.drift),
        "distances": distances,
        "ticks": _ticks(distances),
        "side": 0 if found.maps is None else found.maps.shape[-1],
        "heads": heads,
    }


def _distances(length: int, *, causal: bool) -> list[int]:
    """Return distances from 0, dense near it; on both sides of a bidirectional model."""
    # The farthest distances have few pairs and a noisy mean.
    last = max(1, length * 7 // 8 if causal else length * 3 // 4)
    behind = sorted({round(d) for d in np.geomspace(1, last + 1, POINTS) - 1})
    return behind if causal else [-d for d in reversed(behind[1:])] + behind


def _ticks(distances: list[int]) -> list[int]:
    marks = [mark for mark in (0, 1, 4, 16, 64, 256, 1024, 4096) if mark <= distances[-1]]
    return marks if distances[0] == 0 else [-mark for mark in reversed(marks[2:])] + marks[::2]


def _shades(cells: Float[np.ndarray, "c c"]) -> str:
    """Return square roots of weights as bytes, so that small weights are seen too."""
    top = max(float(cells.max()), 1e-12)
    return base64.b64encode((255 * np.sqrt(cells / top)).astype(np.uint8).tobytes()).decode()


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _measured(about: Mapping[str, Any]) -> str:
    changed = f" Effects are over {about['effects']} of them." if about["effects"] else ""
    return (
        f"Measured on {about['sequences']} sequences of {about['length']:,} tokens of "
        f"{about['text']}.{changed}"
    )


def _kinds(found: Measures) -> str:
    rows = found.rows()
    counts = {kind: sum(kind in row["kinds"] for row in rows) for kind in KINDS}
    parts = [f"{count} {kind} ({KINDS[kind][2]})" for kind, count in counts.items() if count]
    return f"Of {len(rows)} heads: {'; '.join(parts)}." if parts else ""


def _definition(name: str) -> str:
    one = MEASURES[name]
    cells = "".join(f'<td class="text">{escape(text)}</td>' for text in (one.text, one.reference))
    return f'<tr><th scope="row">{escape(one.label)}</th>{cells}</tr>'


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
