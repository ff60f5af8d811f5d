"""The single file: what it contains, what it allows, how large it is."""

import base64
import hashlib
import html
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from captures.test_packs import read_bytes
from headscape.captures.pack import Pack, make_pack, page_arrays
from headscape.captures.saved_call import SavedCall
from headscape.errors import InputError
from headscape.viewer.page import build_page, link, page_script, write_page
from saved_calls import saved, slope
from viewer.packs import MODULE, made

pytestmark = pytest.mark.usefixtures("module")


class Scripts(HTMLParser):
    """The scripts of a page with their attributes, and every other tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag == "script"
        if self._open:
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._open:
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "script"


class PagePack(NamedTuple):
    """A pack as a page has it."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        return str(self.header["title"])


def packs_of(page: str) -> list[PagePack]:
    found = []
    for attributes, text in Scripts(page).scripts:
        if attributes.get("type") == "application/octet-stream":
            found.append(PagePack(*read_bytes(zlib.decompress(base64.b64decode(text), -15))))
    return found


def test_a_page_contains_its_packs() -> None:
    one, two = made(40, layers=2), made(50, kind="slope", title="CABLE")
    page = build_page([one, two], precision="float32")
    first, second = packs_of(page)
    for pack, read in ((one, first), (two, second)):
        layers = {f"layer.{n}": page_arrays(layer) for n, layer in pack.layers.items()}
        expected = {f"{n}.{name}": x for n, mine in layers.items() for name, x in mine.items()}
        assert set(expected) == set(read.arrays)
        for name, value in expected.items():
            np.testing.assert_array_equal(read.arrays[name], value)
    ids = [attributes.get("data-pack") for attributes, _ in Scripts(page).scripts]
    assert ids == ["p0", "p1", None]
    assert "<title>ALiBi, CABLE</title>" in page


def test_the_policy_allows_one_script_and_no_address() -> None:
    page = build_page([made(20)])
    (script,) = [text for given, text in Scripts(page).scripts if given.get("type") == "module"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}' 'wasm-unsafe-eval'" in policy
    assert "unsafe-inline" not in policy
    assert "http" not in policy
    assert script.endswith('b(document.getElementById("viewer"));\n')
    assert not {"link", "img", "iframe", "object", "style"} & set(Scripts(page).tags)
    assert "//" not in re.sub(r"[A-Za-z0-9+/=]{60,}", "", page)


def test_text_of_a_capture_is_never_html() -> None:
    evil = '"><script>alert(1)</script></title><img src=x onerror=alert(2)>'
    page = build_page([made(20, title=evil, pieces=[evil] * 20)])
    assert "alert" not in html.unescape(re.sub(r'data-title="[^"]*"|<title>[^<]*', "", page))
    assert Scripts(page).tags.count("script") == 2
    assert "img" not in Scripts(page).tags
    assert packs_of(page)[0].header["pieces"] == [evil] * 20


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (MODULE, "b("),
        ("function openPage(){}\nexport {\n  x as default,\n  openPage\n};\n", "openPage("),
        ("var $=1;export{$ as openPage,x as default}", "$("),
    ],
)
def test_exports_become_a_call(module: str, call: str) -> None:
    script = page_script(module)
    assert "export" not in script
    assert script.endswith(f'{call}document.getElementById("viewer"));\n')


@pytest.mark.parametrize("module", ["", "let a;export{a as default};", "'</script>';" + MODULE])
def test_a_wrong_module_is_told(module: str) -> None:
    with pytest.raises(InputError, match=r"viewer\.js"):
        page_script(module)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one capture"):
        build_page([])
    with pytest.raises(InputError, match="cannot write"):
        write_page(Path("/proc/none/a.html"), [made(20)])


def test_links_carry_a_state() -> None:
    assert link("my viewer.html", {"layer": 1, "capture": "p0"}) == (
        "my%20viewer.html#%7B%22capture%22%3A%22p0%22%2C%22layer%22%3A1%7D"
    )


def many(layers: int, heads: int, length: int, dims: int = 64) -> Pack:
    """Layers as a model makes them: a few strong directions, noise, running sums."""
    random = np.random.default_rng(0)
    made: dict[int, SavedCall] = {}
    for layer in range(layers):
        strong = random.standard_normal((heads, length, 16)) @ random.standard_normal((16, dims))
        q, k = (
            (strong / 4 + 0.35 * random.standard_normal(strong.shape)).astype(np.float32)
            for _ in range(2)
        )
        total = -np.cumsum(random.gamma(0.3, 0.2, (heads, length)), axis=1)
        weight = random.gamma(2.0, 0.5, (heads, length))
        one = saved(q, k, slope(weight, total, total), lse=False)
        norms = random.standard_normal((heads, length))
        made[layer] = SavedCall(one.described, {**one.arrays, "lse": norms})
    pieces = [f"token{number % 50_000} " for number in range(length)]
    return make_pack(made, encoding="cable", heads=list(range(heads)), title="CABLE", pieces=pieces)


MODULE_BYTES = 250_000
"""What the viewer's module may take; the stand-in takes nothing."""


@pytest.mark.parametrize(
    ("layers", "length", "megabytes"),
    [
        (1, 512, 3),
        pytest.param(12, 512, 25, marks=pytest.mark.slow),
        pytest.param(1, 16_384, 70, marks=pytest.mark.slow),
    ],
)
def test_sizes(
    layers: int, length: int, megabytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log-sum-exp has the same size whatever it is, and takes a minute at 16,384 tokens.
    monkeypatch.setattr(
        "headscape.captures.saved_call.SavedCall.log_sum_exp",
        lambda layer, **_: np.asarray(layer.lse),
    )
    size = write_page(tmp_path / "a.html", [many(layers, 12, length)], precision="float16")
    assert size + MODULE_BYTES <= megabytes * 1e6
