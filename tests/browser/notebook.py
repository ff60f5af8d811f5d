"""The widget's module in a page that stands for a notebook: cells around it, and no address."""

import base64
from collections.abc import Callable
from typing import Any

from headscape.captures.pack import Pack, pack_bytes
from headscape.viewer.page import MODULE, static_text

BODY = """<body data-jp-theme-light="{light}"><div style="height: 300px">In [1]:</div>
    <div id="cell"></div><div style="height: 3000px">In [2]:</div></body>"""
RENDER = """async ([text, bytes, traits]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const { default: widget } = await import(url);
    const pack = { id: "p0", bytes: Uint8Array.from(atob(bytes), (each) => each.charCodeAt(0)) };
    const values = { packs: [pack], ...traits }, model = {
        get: (name) => values[name], set: (name, value) => { values[name] = value; },
        on() {}, off() {}, save_changes() {}, send() {},
    };
    window.traits = values;
    widget.render({ model, el: document.getElementById("cell") });
}"""
Notebook = Callable[..., Any]


def show(page: Any, pack: Pack, *, light: bool = True, **traits: Any) -> None:
    """Show a pack in a cell; `traits` are the widget's."""
    page.set_content(BODY.format(light=str(light).lower()))
    packed = base64.b64encode(pack_bytes(pack)).decode()
    page.evaluate(RENDER, [static_text(MODULE), packed, traits])
    page.wait_for_selector(".headscape[data-screen]")
    page.wait_for_function("() => document.querySelector('.headscape').dataset.pending === '0'")
