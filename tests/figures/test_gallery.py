from html.parser import HTMLParser

import pytest

from figures.synthetic import alibi
from headscape.arrays.measures import measure
from headscape.figures.gallery import Entry, write_gallery


class Page(HTMLParser):
    """What a reader of the page can follow, see and be told."""

    def __init__(self, text):
        super().__init__()
        self.links, self.images, self.ids, self.open, self.tags = [], [], [], [], set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        held = dict(attributes)
        self.tags.add(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "a":
            self.links.append(held["href"])
        if tag == "img":
            self.images.append((held["src"], held["alt"]))
        if "id" in held:
            self.ids.append(held["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def entry():
    found = measure(layer=0, heads=(0, 1), quantity="bias", maps=alibi(2, 8))
    return Entry(
        name="figure-12-alibi",
        title="Figure 12: ALiBi",
        image="figure-12-alibi.png",
        alt="Two maps that darken with distance",
        caption="The bias of <all> heads & more.",
        measures=found,
        files={"SVG": "figure-12-alibi.svg", "capture": "captures/a b.safetensors"},
        made={"command": "headscape figures", "seed": "0"},
    )


def test_page_says_and_links_everything(entry, tmp_path):
    path = write_gallery(tmp_path, [entry], "All heads", {"version": "0.1.0"})
    assert path == tmp_path / "index.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.images == [("figure-12-alibi.png", "Two maps that darken with distance")]
    assert "figure-12-alibi.svg" in page.links
    assert "captures/a%20b.safetensors" in page.links
    for part in ("The bias of <all> heads & more.", "headscape figures", "0.1.0", "shift-invari"):
        assert part in page.text
    anchors = [link[1:] for link in page.links if link.startswith("#")]
    assert anchors == ["figure-12-alibi"]
    assert set(anchors) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_page_needs_no_script_and_no_network(entry, tmp_path):
    text = write_gallery(tmp_path, [entry], "All heads", {}).read_text(encoding="utf-8")
    page = Page(text)
    assert not page.tags & {"script", "link", "iframe"}
    assert "http" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert '<html lang="en">' in text


def test_same_entries_same_bytes(entry, tmp_path):
    pages = [write_gallery(tmp_path / name, [entry], "T", {"v": "1"}) for name in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()
