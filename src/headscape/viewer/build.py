"""One self-contained HTML file: the viewer's module and the captures' packs, and nothing else.

The file opens from disk and asks the network for nothing; its Content-Security-Policy allows the
one script whose hash it names. Packs are deflated and base64; token text is inside them, so no text
of a capture is ever HTML. Titles are attributes and escaped.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headscape.captures.browser import Pack, Precision, pack_bytes
from headscape.errors import InputError
from headscape.io.output_file import GENERATOR, KINDS, check_output, write_output

MODULE: Final = "viewer.js"
POLICY: Final = (
    "default-src 'none'; script-src '{hash}' 'wasm-unsafe-eval'; worker-src blob:; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{generator}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
</head>
<body>
<main id="viewer"></main>
<noscript>This page draws attention maps and needs JavaScript.</noscript>
{packs}
<script type="module">{script}</script>
</body>
</html>
"""
PACK: Final = (
    '<script type="application/octet-stream" data-pack="{id}" data-title="{title}">{data}</script>'
)


def write_page(
    path: Path, packs: Sequence[Pack], *, precision: Precision = "float16", title: str | None = None
) -> int:
    """Write the page and return its size in bytes; replace nothing but a page of ours."""
    check_output(path, KINDS["html"])
    page = build_page(packs, precision=precision, title=title)
    data = page.encode("utf-8", "replace")  # half of a surrogate pair, in a title, becomes "?"
    write_output(Path(path), data, KINDS["html"])
    return len(data)


def build_page(
    packs: Sequence[Pack], *, precision: Precision = "float16", title: str | None = None
) -> str:
    """The page as text; `precision` is that of queries and keys."""
    if not packs:
        raise InputError("a page needs at least one capture.")
    script = page_script(static_text(MODULE))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    blocks = [
        PACK.format(
            id=f"p{index}", title=escape(pack.title), data=_encoded(pack_bytes(pack, precision))
        )
        for index, pack in enumerate(packs)
    ]
    return PAGE.format(
        policy=POLICY.format(hash=f"sha256-{digest}"),
        generator=GENERATOR,
        title=escape(title or ", ".join(pack.title for pack in packs)),
        packs="\n".join(blocks),
        script=script,
    )


def static_text(name: str) -> str:
    """A file of the viewer's module, as the package ships it."""
    try:
        return resources.files("headscape.viewer").joinpath("static", name).read_text("utf-8")
    except OSError as error:
        raise InputError(f"this installation has no {name}: install the package again.") from error


def page_script(module: str) -> str:
    """The module as an inline script that opens the page: its exports become one call."""
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
    """The address of a page with the view that `state` describes."""
    text = json.dumps(state, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return f"{quote(page)}#{quote(text)}"


def _encoded(data: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()
