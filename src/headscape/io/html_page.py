"""The one HTML shell of every page that headscape writes, and its Content-Security-Policy.

A page opens from disk and asks the network for nothing. Without a script it may use its own style
and pictures beside it; a page with a script names its own policy. Colours follow the reader's light
or dark setting.
"""

from html import escape
from typing import Final

from headscape.io.output_file import GENERATOR

NO_SCRIPT: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:; "
    "base-uri 'none'; form-action 'none'"
)
"""`file:` beside 'self', because a page from disk has no origin that 'self' could name."""
SHELL: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}{generator}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
{style}</head>
<body>
{body}
</body>
</html>
"""


def html_page(title: str, body: str, *, style: str = "", policy: str | None = NO_SCRIPT) -> str:
    """Return a whole document.

    Args:
        title: Plain text; escaped here.
        body: HTML.
        style: CSS.
        policy: The Content-Security-Policy; None where a server sends it.
    """
    return SHELL.format(
        policy=""
        if policy is None
        else f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        generator=GENERATOR,
        title=escape(title),
        style=f"<style>{style}</style>\n" if style else "",
        body=body.strip("\n"),
    )
