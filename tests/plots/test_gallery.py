from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headscape.errors import InputError
from headscape.io.html_page import NO_SCRIPT
from headscape.measures.measures import Measures
from headscape.plots.gallery import GalleryEntry, merge, read_entries, write_gallery
from plots.synthetic import alibi, capture


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
    return GalleryEntry(
        name="figure-12-alibi",
        title="Figure 12: ALiBi",
        image="figure-12-alibi.png",
        alt="Two maps that darken with distance",
        caption="The bias of <all> heads & more.",
        measures=Measures.of(capture(alibi(2, 8))),
        number=12,
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
    for part in ("The bias of <all> heads & more.", "headscape figures", "0.1.0", "position share"):
        assert part in page.text
    anchors = [link[1:] for link in page.links if link.startswith("#")]
    assert anchors == ["figure-12-alibi", "columns"]
    assert set(anchors) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_page_needs_no_script_and_no_network(entry, tmp_path):
    text = write_gallery(tmp_path, [entry], "All heads", {}).read_text(encoding="utf-8")
    page = Page(text)
    assert not page.tags & {"script", "link", "iframe"}
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert '<html lang="en">' in text
    assert NO_SCRIPT in text


def test_same_entries_same_bytes(entry, tmp_path):
    pages = [write_gallery(tmp_path / name, [entry], "T", {"v": "1"}) for name in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_page_explains_the_columns_it_shows(entry, tmp_path):
    page = Page(write_gallery(tmp_path, [entry], "T", {}).read_text(encoding="utf-8"))
    columns = entry.measures.columns()
    assert len(columns) > 5
    for column in columns:
        assert column.label in page.text
        assert column.text in page.text
    assert "context dependence" not in page.text
    bare = replace(entry, measures=None)
    text = write_gallery(tmp_path, [bare], "T", {}).read_text(encoding="utf-8")
    assert "What the columns mean" not in text


def test_viewer_link(entry, tmp_path):
    assert (
        "Open in the viewer" not in Page(write_gallery(tmp_path, [entry], "T", {}).read_text()).text
    )
    linked = replace(entry, viewer="viewer.html#capture=alibi&layer=2")
    page = Page(write_gallery(tmp_path, [linked], "T", {}).read_text(encoding="utf-8"))
    assert "viewer.html#capture=alibi&layer=2" in page.links


def test_a_second_run_keeps_earlier_figures(entry, tmp_path):
    assert read_entries(tmp_path) == []
    extra = replace(entry, name="extra-fox", title="FoX", number=None, image="fox.png")
    cable = replace(entry, name="figure-08-cable", number=8, image="cable.png", measures=None)
    for each in (entry, extra, cable):
        (tmp_path / each.image).touch()
    write_gallery(tmp_path, merge([], [entry, extra]), "T", {})
    assert read_entries(tmp_path) == [entry, extra]
    again = replace(entry, caption="Made again.")
    merged = merge(read_entries(tmp_path), [again, cable])
    assert merged == [cable, again, extra]
    page = Page(write_gallery(tmp_path, merged, "T", {}).read_text(encoding="utf-8"))
    assert [source for source, _ in page.images] == ["cable.png", "figure-12-alibi.png", "fox.png"]
    (tmp_path / "fox.png").unlink()
    assert read_entries(tmp_path) == [cable, again]


@pytest.mark.parametrize("text", ["{", "[1]", '[{"name": "a"}]'])
def test_damaged_entries_are_refused(tmp_path, text):
    (tmp_path / "entries.json").write_text(text)
    with pytest.raises(InputError, match=r"entries\.json is damaged .*delete it"):
        read_entries(tmp_path)


def test_the_page_begins_with_what_it_is_and_the_way_into_the_viewer(tmp_path, entry):
    linked = replace(entry, viewer="viewer.html#%7B%7D")
    text = write_gallery(tmp_path, [linked], "T", {}, about="Maps & curves.").read_text()
    start = text.partition("<nav")[0]
    assert "<p>Maps &amp; curves.</p>" in start
    assert '<a class="viewer" href="viewer.html">Open all heads in the viewer</a>' in start
    bare = write_gallery(tmp_path, [entry], "T", {}).read_text().partition("<nav")[0]
    assert "viewer.html" not in bare
