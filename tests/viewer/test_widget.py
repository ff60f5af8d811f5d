"""The notebook widget: traits both ways, messages, and a picture that an export keeps."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from headscape.errors import InputError
from headscape.viewer.viewer_answers import Answers
from headscape.viewer.widget import HIDDEN, _widget_type, make_widget
from viewer.packs import made, quantities

pytestmark = pytest.mark.usefixtures("module")


@pytest.fixture
def widget() -> Any:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    return make_widget(Answers.of([made(60, layers=2), made(40, kind="slope", title="CABLE")]))


def test_selection_is_read_and_set(widget: Any) -> None:
    assert widget.selection == {
        "capture": "p0",
        "layer": 0,
        "head": 0,
        "query": None,
        "key": None,
        "quantity": "weights",
    }
    seen: list[Any] = []
    widget.observe(lambda change: seen.append(change["new"]), "selection")
    widget.selection = {"layer": 0, "head": 2, "query": 30, "key": 4, "quantity": "weights"}
    assert widget.selection["capture"] == "p0"
    assert seen == [widget.selection]
    # What the browser sends arrives through the same trait.
    widget.set_state({"selection": {**widget.selection, "head": 1}, "hover": {"query": 3}})
    assert widget.selection["head"] == 1
    assert widget.hover == {"query": 3}


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"capture": "p7"}, "unknown capture 'p7'"),
        ({"layer": 9}, "layer 9 is not in this capture"),
        ({"head": 9}, "head 9 is not in this capture"),
        ({"quantity": "speed"}, "unknown quantity 'speed'"),
        ({"query": 60}, "query 60 is outside the sequence of length 60"),
        ({"token": 3}, "a selection has no 'token'"),
    ],
)
def test_a_wrong_selection_is_told(widget: Any, selection: dict[str, Any], message: str) -> None:
    before = widget.selection
    with pytest.raises(InputError, match=message):
        widget.selection = selection
    assert widget.selection == before


def test_heads_are_sent_by_message(widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        type(widget), "send", lambda _, content, buffers=None: sent.append((content, buffers))
    )
    widget._handle_custom_msg({"type": "pack", "id": "p1", "request": 5}, [])
    ((content, buffers),) = sent
    assert content == {"type": "pack", "request": 5, "id": "p1"}
    assert buffers[0][8:].startswith(b'{"__metadata__":{')
    state = json.dumps({name: widget.get_state()[name] for name in ("packs", "state")})
    assert len(state) < 6000
    assert [entry["title"] for entry in widget.packs] == ["ALiBi", "CABLE"]


def test_a_picture_is_kept(widget: Any) -> None:
    widget.selection = {"quantity": "bias"}
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    pixels = painted(widget)
    assert pixels.shape == (60, 3 * 60 + 2 * 4, 3)
    assert tuple(pixels[5, 50]) == HIDDEN
    # ALiBi's bias is 0, the greatest, on the diagonal and least far from it: lighter is greater.
    viridis = mpl.colormaps["viridis"]
    assert tuple(pixels[59, 59]) == viridis(1.0, bytes=True)[:3]
    assert tuple(pixels[59, 0]) == viridis(0.0, bytes=True)[:3]


def test_weights_are_painted_by_their_logarithm() -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    pack = made(60)
    pixels = painted(make_widget(Answers.of([pack])))
    weights = quantities(pack, 0, 0)["weights"]
    for query, key in ((0, 0), (59, 59), (59, 0), (30, 25)):
        share = np.clip(1 + np.log10(weights[query, key]) / 4, 0, 1)
        expected = np.array(mpl.colormaps["viridis"](share, bytes=True)[:3], int)
        assert np.abs(pixels[query, key] - expected).max() <= 2, (query, key)


def test_scores_of_both_signs_are_grey_at_zero(widget: Any) -> None:
    widget.selection = {"quantity": "content"}
    pixels = painted(widget)[:60, :60]
    content = quantities(made(60, layers=2), 0, 0)["content"]
    least = np.unravel_index(np.nanargmin(np.abs(content)), content.shape)
    assert np.ptp(pixels[least]) < 25
    assert np.ptp(pixels[np.unravel_index(np.nanargmax(content), content.shape)]) > 80


def test_a_constant_map_is_grey() -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    widget = make_widget(Answers.of([made(20, table=np.zeros(20))]))
    widget.selection = {"quantity": "bias"}
    assert painted(widget)[:20, :20][np.tri(20, dtype=bool)].tolist() == [[166, 167, 169]] * 210


def painted(widget: Any) -> np.ndarray:
    """The pixels of the picture that the widget keeps, as whole numbers."""
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data["image/png"])))).astype(int)


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    _widget_type.cache_clear()
    with pytest.raises(InputError, match=r"needs anywidget: pip install 'headscape\[notebook\]'"):
        make_widget(Answers.of([made(20)]))
    _widget_type.cache_clear()


FIRST = """
import sys; sys.path[:0] = {paths!r}
import headscape.viewer.widget as widget
from headscape.viewer.view import view
from viewer.packs import MODULE, made
widget.static_text = lambda _: MODULE
shown = view(made(60), made(40))
shown
"""
SECOND = """
shown.selection = {'head': 2, 'query': 9, 'key': 3}
shown.set_state({'hover': {'query': 1, 'key': 0}})
print(shown.selection['head'], shown.selection['capture'], shown.hover['query'])
"""
EXECUTE = """
import sys, nbclient, nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
path, kernels = sys.argv[1:]
notebook = nbformat.read(path, 4)
specs = KernelSpecManager(kernel_dirs=[kernels])
manager = AsyncKernelManager(kernel_name="here", kernel_spec_manager=specs)
nbclient.NotebookClient(notebook, km=manager, timeout=120).execute()
nbformat.write(notebook, path)
"""


def test_an_executed_notebook_shows_the_widget(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    for name in ("nbclient", "anywidget", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    paths = [str(Path(__file__).parents[1]), *sys.path]
    sources = [FIRST.format(paths=paths), SECOND]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = tmp_path / "shown.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    kernels = tmp_path / "kernels" / "here"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "here", "language": "python"})
    )
    command = [sys.executable, "-c", EXECUTE, str(path), str(kernels.parent)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    notebook = nbformat.read(path, 4)
    shown = notebook.cells[0].outputs[-1].data
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")
    assert notebook.cells[1].outputs[0].text == "2 p0 1\n"
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    (state,) = [each["state"] for each in states.values() if "selection" in each["state"]]
    assert state["selection"]["query"] == 9
    assert len(json.dumps(state)) < 20_000
