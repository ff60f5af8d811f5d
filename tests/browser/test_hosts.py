"""The same viewer from the server: exact tiles, long captures, a typed text, a replaced file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from browser.captures import capture, definition
from browser.conftest import Open, Opened
from captures.test_overview import dense_weights, long_pack
from headscape.captures.capture_file import open_pack
from headscape.captures.pack import Pack
from headscape.viewer.page import with_measures
from headscape.viewer.viewer_answers import Answers, Served
from pack_files import write

pytestmark = pytest.mark.browser


@contextmanager
def served(open_page: Open, answers: Answers, state: dict[str, Any]) -> Iterator[Opened]:
    pytest.importorskip("starlette", reason="the server's extra is missing")
    from headscape.viewer.serve import Server

    with Server(answers) as server:
        packs = [one.tiles.pack for one in answers.served.values()]
        opened = open_page(packs, url=f"{server.invite()}#{quote(json.dumps(state))}")
        yield opened
        opened.check()
        opened.page.goto("about:blank")


@pytest.mark.parametrize("tiles", [False, True])
def test_values_come_from_the_server(
    tiles: bool, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiles:
        monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    expected = definition("cable", 1, 2)
    state = {"screen": "head", "layer": 1, "head": 2, "locked": {"query": 50, "key": 47}}
    with served(open_page, Answers.of([capture("cable")]), state) as opened:
        opened.settle()
        opened.page.wait_for_function(
            "() => !document.querySelector('.readout td').innerText.match('–')"
        )
        for quantity, value in opened.readout().items():
            assert value == pytest.approx(expected[quantity][50, 47], rel=1e-6, abs=4e-6)
        for pair, value in opened.shown().items():
            assert value == pytest.approx(expected["weights"][pair], abs=4e-6)
        assert opened.page.locator(".typing").is_hidden()


@pytest.mark.parametrize("known", [True, False], ids=["factors", "no-factors"])
def test_a_short_capture_is_shown_in_tiles(
    known: bool, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything the viewer shows comes from the server, also where the browser has no factors."""
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    answers = Answers.of([with_measures(capture("cable")), capture("alibi")])
    if not known:
        listed = Served.listed

        def without(one: Served) -> dict[str, Any]:
            entry = listed(one)
            header = {**entry["header"], "factors": [None] * len(entry["header"]["layers"])}
            return {**entry, "header": header}

        monkeypatch.setattr(Served, "listed", without)
    with served(open_page, answers, {"overview": {"order": "falling"}}) as opened:
        opened.settle()
        measures = answers.served["p0"].tiles.pack.header["measures"]
        assert measures[0]["name"] == "position_share"
        values = sorted((x for row in measures[0]["values"] for x in row), reverse=True)
        expected = [format(x, measures[0]["form"]) for x in values]
        assert opened.page.locator(".card .value").all_inner_texts() == expected
        assert (opened.pixels(".card canvas")[..., 3] > 0).any()  # thumbnails are painted
        opened.page.locator('.card[data-layer="1"][data-head="2"]').click()
        opened.settle()
        row = opened.page.locator('tr[data-measure="position_share"] td')
        assert row.inner_text() == format(measures[0]["values"][1][2], measures[0]["form"])
        x, y = opened.cell(60, 20)
        opened.page.mouse.click(x, y)
        opened.page.wait_for_function(
            """() => document.querySelectorAll(".linked .plot .mark").length === 3 &&
                document.querySelectorAll(".linked path.curve:not(.faint)").length === 3"""
        )
        assert "60" in opened.page.locator(".strip.query .active").inner_text()
        ours, other = definition("cable", 1, 2), definition("alibi", 1, 2)
        for quantity, value in opened.readout().items():
            assert value == pytest.approx(ours[quantity][60, 20], rel=1e-6, abs=4e-6)
        opened.page.goto(
            opened.page.url.split("#")[0]
            + "#"
            + quote(
                json.dumps(
                    {
                        "screen": "head",
                        "layer": 1,
                        "head": 2,
                        "compare": "difference",
                        "other": "p1",
                    }
                )
            )
        )
        opened.page.wait_for_selector(".panel .title >> text=minus alibi")  # the address was read
        opened.settle()
        for pair, value in opened.shown().items():
            wanted = ours["weights"][pair] - other["weights"][pair]
            assert value == pytest.approx(wanted, abs=4e-6)


@pytest.mark.parametrize("name", ["pope", "path", "stick-breaking"])
def test_an_encoding_that_the_browser_cannot_compute_is_served(name: str, open_page: Open) -> None:
    answers = Answers.of([with_measures(capture(name))])
    assert answers.packs()[0]["tiles"]
    state = {"screen": "head", "layer": 1, "head": 2, "locked": {"query": 50, "key": 47}}
    with served(open_page, answers, state) as opened:
        opened.settle()
        opened.page.wait_for_function(
            "() => !document.querySelector('.readout td').innerText.match('–')"
        )
        expected = definition(name, 1, 2)
        for quantity, value in opened.readout().items():
            assert value == pytest.approx(expected[quantity][50, 47], rel=1e-5, abs=1e-5)
        for pair, value in opened.shown().items():
            assert value == pytest.approx(expected["weights"][pair], abs=1e-5)


def test_a_typed_text_is_run(open_page: Open) -> None:
    texts: list[str] = []

    def run(text: str) -> Pack:
        texts.append(text)
        return capture("alibi", title=f"typed {text}", length=40)

    answers = Answers.of([capture("cable")], [run])
    with served(open_page, answers, {"screen": "head"}) as opened:
        opened.settle()
        opened.page.get_by_label("Text for the model to read").fill("<script>hello</script>")
        opened.page.get_by_role("button", name="Run the model").click()
        opened.page.wait_for_selector("text=The views show your text.")
        opened.settle()
        assert texts == ["<script>hello</script>"]
        assert opened.page.locator("h1").inner_text() == "typed <script>hello</script>"
        assert opened.state()["capture"] == "p1"
        assert max(query for query, _ in opened.shown()) == 39


def test_a_new_text_starts_afresh(open_page: Open) -> None:
    """No pair of the old text, no second capture of the same name, no slider over one step."""

    def run(text: str) -> Pack:
        return capture("cable", title="nano, step 500", length=42, step=500)

    answers = Answers.of([capture("cable", title="nano, step 500", step=500)], [run])
    state = {"screen": "head", "locked": {"query": 66, "key": 60}}
    with served(open_page, answers, state) as opened:
        opened.settle()
        opened.page.mouse.move(*opened.cell(80, 70))
        opened.page.get_by_label("Text for the model to read").fill("hello")
        opened.page.get_by_role("button", name="Run the model").click()
        opened.page.wait_for_selector("text=The views show your text.")
        opened.settle()
        assert "locked" not in opened.state()
        assert "Query" not in opened.where()
        names = opened.page.locator("label.field", has_text="Capture").locator("option")
        assert len(set(names.all_inner_texts())) == 2
        assert opened.page.get_by_label("Training step").first.is_hidden()


def test_a_long_head_is_a_preview_first(
    tmp_path: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    monkeypatch.setattr("headscape.viewer.tiles.FOREGROUND", 1 << 18)
    path = tmp_path / "long.safetensors"
    write(long_pack(8192), path)
    answers = Answers.of([open_pack(path)])
    with served(open_page, answers, {"screen": "head", "head": 5}) as opened:
        opened.page.wait_for_selector("text=/This is a preview/", timeout=60_000)
        answers.served["p0"].tiles._jobs[0, 5].wait(120)
        opened.page.wait_for_function(
            "() => !document.querySelector('.panel .status').innerText.includes('preview')",
            timeout=60_000,
        )
        opened.settle()
        level = int(opened.page.locator(".panel").get_attribute("data-level"))
        side = 1 << level
        shown = opened.shown(side)
        rows = slice(40 * side, 41 * side)
        weights = dense_weights(open_pack(path).layer(0), rows)
        for cell in range(40):
            expected = weights[:, cell * side : (cell + 1) * side].max()
            assert shown[40 * side, cell * side] == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_server_that_ends_is_told(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    from headscape.viewer.serve import Server

    server = Server(Answers.of([capture("cable")]))
    server.start()
    opened = open_page(
        [capture("cable")], url=f"{server.invite()}#{quote(json.dumps({'screen': 'head'}))}"
    )
    opened.settle()
    server.stop()
    opened.page.keyboard.press("1")
    opened.page.wait_for_selector("[role=alert]:not([hidden])")
    assert "could not be computed" in opened.page.locator("[role=alert]").inner_text()
    opened.complaints.clear()  # the browser itself reports that it cannot connect


def test_the_address_is_clean_and_a_second_tab_opens_it(open_page: Open) -> None:
    pytest.importorskip("starlette", reason="the server's extra is missing")
    from headscape.viewer.serve import Server

    with Server(Answers.of([capture("cable", title="Cable's capture")])) as server:
        opened = open_page([capture("cable")], url=server.invite())
        opened.settle()
        assert opened.page.url.split("#")[0] == server.url
        assert opened.page.title() == "Cable's capture"
        assert server.token not in opened.page.content()
        opened.page.reload()
        opened.settle()
        second = opened.page.context.new_page()
        second.goto(f"{server.url}#{quote(json.dumps({'screen': 'head', 'head': 2}))}")
        second.wait_for_selector('.panel[data-complete="true"]')
        stranger = opened.page.context.browser.new_context().new_page()
        stranger.goto(server.url)
        stranger.wait_for_selector("text=open the newest address in the terminal")
        stranger.context.close()
        opened.check()
        opened.page.goto("about:blank")
