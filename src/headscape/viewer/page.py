"""The viewer's HTML: one self-contained file with module and data, or the server's shell.

The page of captures, the figures' page, the atlas and the server's page have one body and one
Content-Security-Policy, which allows the one script whose hash it names. A file opens from disk and
asks the network for nothing. Data is safetensors bytes, deflated and base64; text of a
capture or a model is inside it, so none is ever HTML. Titles are attributes and escaped.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import numpy as np

from headscape.captures.pack import Pack, Precision, pack_bytes
from headscape.captures.saved_call import rows_at_once
from headscape.errors import InputError
from headscape.io.html_page import html_page
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.measures.definitions import MEASURES
from headscape.measures.measures import OF_SCORES, Measures, values_of_maps

MODULE: Final = "viewer.js"
POLICY: Final = (
    "default-src 'none'; script-src {script} 'wasm-unsafe-eval'; worker-src blob:; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
BODY: Final = """<main id="viewer"{server}></main>
<noscript>This page draws attention maps and needs JavaScript.</noscript>
{scripts}"""
DATA: Final = (
    '<script type="application/octet-stream" data-{kind}="{id}" data-title="{title}">{data}'
    "</script>"
)
HALF_FROM: Final = 1 << 20
"""Numbers in q and k from which a page keeps them in float16 by default."""

Data = tuple[str, bytes]
"""A title and safetensors bytes."""


def write_page(
    path: Path, packs: Sequence[Pack], *, precision: Precision = "float16", title: str | None = None
) -> int:
    """Write a page of captures and return its size in bytes; replace nothing but a page of ours.

    Args:
        path: The file.
        packs: The captures.
        precision: Of queries and keys.
        title: Of the page; by default the captures' titles.
    """
    check_output(path, KINDS["html"])
    page = build_page(packs, precision=precision, title=title)
    data = page.encode("utf-8", "replace")  # half of a surrogate pair, in a title, becomes "?"
    write_output(Path(path), data, KINDS["html"])
    return len(data)


def build_page(
    packs: Sequence[Pack], *, precision: Precision = "float16", title: str | None = None
) -> str:
    """Return a page of captures as text; the arguments are those of `write_page`."""
    if not packs:
        raise InputError("a page needs at least one capture.")
    data = [(pack.title, pack_bytes(pack, precision)) for pack in packs]
    return page_of("pack", data, title or ", ".join(pack.title for pack in packs))


def page_of(kind: Literal["pack", "atlas"], data: Sequence[Data], title: str) -> str:
    """Return a page that contains its data: captures, or one atlas."""
    script = page_script(static_text(MODULE))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(script=f"'sha256-{digest}'")
    blocks = [
        DATA.format(kind=kind, id=f"p{index}", title=escape(name), data=_encoded(each))
        for index, (name, each) in enumerate(data)
    ]
    scripts = "\n".join([*blocks, f'<script type="module">{script}</script>'])
    return html_page(title, BODY.format(server="", scripts=scripts), policy=policy)


def server_page(server: str, script: str) -> str:
    """Return the page of a server, which sends the policy itself: addresses of both."""
    scripts = f'<script type="module" src="{script}"></script>'
    body = BODY.format(server=f' data-server="{server}"', scripts=scripts)
    return html_page("Headscape", body, policy=None)


def static_text(name: str) -> str:
    """Return a file of the viewer's module, as the package ships it."""
    try:
        return resources.files("headscape.viewer").joinpath("static", name).read_text("utf-8")
    except OSError as error:
        raise InputError(f"this installation has no {name}: install the package again.") from error


def page_script(module: str) -> str:
    """Return the module as a script that opens the page: its exports become one call."""
    exports = re.search(r"export\s*\{([^}]*)\};?\s*$", module)
    opened = exports and re.search(r"([\w$]+)\s+as\s+openPage\b|\b(openPage)\b", exports[1])
    if not exports or not opened:
        raise InputError(f"{MODULE} does not export openPage: install the package again.")
    call = f'{opened[1] or opened[2]}(document.getElementById("viewer"));'
    script = f"{module[: exports.start()]}{call}\n"
    if "</script" in script.lower() or "<!--" in script:
        raise InputError(f"{MODULE} cannot be written into a page: it contains an end tag.")
    return script


def link(page: str, state: Mapping[str, Any]) -> str:
    """Return the address of a page with the view that `state` describes."""
    text = json.dumps(state, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return f"{quote(page)}#{quote(text)}"


def default_precision(packs: Sequence[Pack]) -> Precision:
    """Return float32 for a few heads of a short text, float16 for anything larger."""
    return "float16" if sum(pack.numbers for pack in packs) >= HALF_FROM else "float32"


def write_figures_page(path: Path, figures: Mapping[str, tuple[Pack, str]]) -> dict[str, str]:
    """Write one viewer page for several figures; return the link into it for each figure's name.

    A figure is a pack and the quantity it shows. Its link opens its own capture at its last layer.
    """
    every = [with_measures(pack) for pack, _ in figures.values()]
    write_page(path, every, precision=default_precision(every), title="Figures")
    return {
        name: link(
            Path(path).name,
            {"capture": f"p{number}", "layer": pack.header["layers"][-1], "quantity": quantity},
        )
        for number, (name, (pack, quantity)) in enumerate(figures.items())
    }


def _encoded(data: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


MAX_PAIRS: Final = 1 << 22
"""Pairs of tokens, over all heads, up to which a capture is measured when it is opened."""


def with_measures(pack: Pack) -> Pack:
    """Return the pack with `measures` in its header: those of the bias and the weights.

    Where only weights were given, those of the weights.

    A capture of more than MAX_PAIRS pairs is not measured here: the viewer then offers what it
    computes itself.
    """
    layers, heads, length = pack.header["layers"], pack.header["heads"], pack.length
    if "measures" in pack.header or len(layers) * len(heads) * length**2 > MAX_PAIRS:
        return pack
    blocks = [_blocks(pack, layer) for layer in layers]
    causal = bool(pack.header["causal"])
    every = values_of_maps(blocks, heads=len(heads), length=length, causal=causal)
    skipped = OF_SCORES if _measured(pack) == "weights" else ()
    values = {
        name: each
        for name, each in every.items()
        if not MEASURES[name].numbers_heads and name not in skipped
    }
    measures = Measures(
        quantity=_measured(pack), about={}, layers=tuple(layers), heads=tuple(heads), values=values
    )
    return replace(pack, header={**pack.header, "measures": measures.for_viewer()})


def _measured(pack: Pack) -> str:
    """Return the quantity whose position share and similarity a page shows."""
    return "bias" if "bias" in pack.header["quantities"] else "weights"


def _blocks(pack: Pack, layer: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield queries with their biases and weights."""
    heads, stored = range(len(pack.header["heads"])), pack.layer(layer)
    for rows in rows_at_once(len(heads), pack.length):
        scores, weights = (
            stored.tile(quantity, heads, rows, slice(0, pack.length))
            for quantity in (_measured(pack), "weights")
        )
        yield rows, scores, weights
