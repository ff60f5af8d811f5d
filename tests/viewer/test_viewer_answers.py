"""Answers to the viewer's messages: values are numpy's, mistakes are one sentence."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscape
from browser.captures import capture
from headscape.captures.pack import Pack
from headscape.errors import InputError
from headscape.viewer import tiles
from headscape.viewer.viewer_answers import Answers
from pack_files import write
from viewer.packs import made, quantities

EVERY = ("content", "bias", "final", "weights")


def ask(answers: Answers, **message: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    asked = {"id": "p0", "layer": 0, "head": 1, "quantity": "final", "request": 7, **message}
    content, buffers = answers.answer(asked)
    assert content["request"] == 7
    kind = "<f4" if message["type"] == "tile" else "<f8"
    return content, [np.frombuffer(buffer, kind) for buffer in buffers]


def tile(answers: Answers, **message: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    place = {"minus": "nothing", "level": 0, "row": 0, "column": 0, **message}
    content, buffers = ask(answers, type="tile", **place)
    return content, [each.reshape(256, 256) for each in buffers]


@pytest.mark.parametrize("quantity", EVERY)
@pytest.mark.parametrize("kind", ["toeplitz", "slope"])
@pytest.mark.parametrize("lse", [True, False])
def test_tiles_and_values_are_numpys(quantity: str, kind: str, lse: bool) -> None:
    pack = made(300, kind=kind, lse=lse)
    expected = quantities(pack, 0, 1)[quantity]
    answers = Answers.of([pack])
    content, (found,) = tile(answers, quantity=quantity, row=1)
    assert "preview" not in content
    np.testing.assert_allclose(found[:44], expected[256:, :256], atol=4e-6)
    assert np.isnan(found[44:]).all()
    content, (values,) = ask(
        answers, type="values", quantity=quantity, queries=[10, 50], keys=[3, 33]
    )
    assert content["shape"] == [40, 30]
    atol = 1e-10 if lse else 4e-6
    np.testing.assert_allclose(values.reshape(40, 30), expected[10:50, 3:33], atol=atol)


@pytest.mark.parametrize("minus", ["nothing", "row", "distance"])
@pytest.mark.parametrize("quantity", EVERY)
def test_zoomed_out_tiles_are_pooled(quantity: str, minus: str) -> None:
    pack = made(300, kind="slope")
    whole = quantities(pack, 0, 1)[quantity]
    if minus == "row":
        whole = whole - np.nanmean(whole, axis=1, keepdims=True)
    if minus == "distance":
        means = np.array([np.nanmean(np.diagonal(whole, -d)) for d in range(300)])
        at = np.arange(300)
        whole = whole - means[np.maximum(at[:, None] - at, 0)]
    _, buffers = tile(Answers.of([pack]), quantity=quantity, minus=minus, level=2)
    padded = np.full((300, 300), np.nan)
    padded[:] = whole
    cells = padded.reshape(75, 4, 75, 4)
    with np.errstate(all="ignore"):
        for found, reduce in zip(buffers, (np.nanmean, np.nanmin, np.nanmax), strict=True):
            lower = np.tri(75, dtype=bool)
            expected = np.array(
                [
                    [reduce(cells[y, :, x]) if lower[y, x] else np.nan for x in range(75)]
                    for y in range(75)
                ]
            )
            np.testing.assert_allclose(found[:75, :75], expected, atol=5e-6)
            assert np.isnan(found[75:]).all()


def scaled(pack: Pack, head: int, position: float) -> dict[str, np.ndarray]:
    """Whole maps with the positional part scaled, by numpy alone; NaN where hidden."""
    maps = quantities(pack, 0, head)
    final = maps["content"] + position * (maps["final"] - maps["content"])
    weights = np.exp(final) / np.nansum(np.exp(final), axis=1, keepdims=True)
    bias = position * maps["bias"]
    return {"content": maps["content"], "bias": bias, "final": final, "weights": weights}


@pytest.mark.parametrize("position", [0, 0.5, 1, 2.0])
@pytest.mark.parametrize("kind", ["toeplitz", "slope"])
def test_the_positional_part_is_scaled(kind: str, position: float) -> None:
    pack, other = made(300, kind=kind), made(300, kind=kind, seed=1)
    answers = Answers.of([pack, other])
    want, less = scaled(pack, 1, position), scaled(other, 1, position)
    for quantity in EVERY:
        asked = {"quantity": quantity, "position": position}
        _, (found,) = tile(answers, **asked, row=1)
        np.testing.assert_allclose(found[:44], want[quantity][256:, :256], atol=4e-6)
        _, (values,) = ask(answers, type="values", **asked, queries=[10, 50], keys=[3, 33])
        expected = want[quantity][10:50, 3:33]
        np.testing.assert_allclose(values.reshape(40, 30), expected, atol=1e-9)
        _, pooled = tile(answers, **asked, level=3)
        cell = want[quantity][40:48, 16:24]
        found_cell = [each[5, 2] for each in pooled]
        np.testing.assert_allclose(found_cell, [cell.mean(), cell.min(), cell.max()], atol=4e-6)
        _, (found,) = tile(answers, **asked, other={"id": "p1"})
        gap = (want[quantity] - less[quantity])[:256, :256]
        np.testing.assert_allclose(found, gap, atol=1e-5)
        _, (_, mean, *_, rows) = ask(answers, type="profile", **asked)
        by_distance = [np.mean(np.diagonal(want[quantity], -d)) for d in range(300)]
        np.testing.assert_allclose(mean, by_distance, atol=1e-6)
        np.testing.assert_allclose(rows, np.nanmean(want[quantity], axis=1), atol=1e-6)
        _, (found,) = tile(answers, **asked, minus="row")
        centred = want[quantity] - np.nanmean(want[quantity], axis=1, keepdims=True)
        np.testing.assert_allclose(found, centred[:256, :256], atol=1e-5)


def test_a_layer_without_position_in_its_scores_is_not_scaled() -> None:
    answers = Answers.of([capture("stick-breaking"), capture("nope"), capture("path")])
    reasons = [each["header"]["fixed_position"][0] for each in answers.packs()]
    assert "not a softmax" in reasons[0]
    assert "no part in its scores" in reasons[1]
    assert reasons[2] is None
    where = {"level": 0, "row": 0, "column": 0, "minus": "nothing", "layer": 0, "head": 0}
    for number in (0, 1):
        asked = {"type": "tile", "id": f"p{number}", "quantity": "weights", "position": 0.5}
        content, _ = answers.answer({**asked, **where})
        assert content["type"] == "error"
        assert "cannot be scaled" in content["message"]


def test_a_difference_is_pair_by_pair() -> None:
    one, two = made(300), made(280, seed=1)
    answers = Answers.of([one, two])
    expected = quantities(one, 0, 1)["final"][:280, :280] - quantities(two, 0, 1)["final"]
    _, (found,) = tile(answers, other={"id": "p1"})
    np.testing.assert_allclose(found, expected[:256, :256], atol=1e-5)
    _, pooled = tile(answers, other={"id": "p1"}, level=3)
    np.testing.assert_allclose(pooled[2][5, 2], expected[40:48, 16:24].max(), atol=1e-5)
    np.testing.assert_allclose(pooled[0][5, 2], expected[40:48, 16:24].mean(), atol=1e-5)


def test_profiles() -> None:
    pack = made(80)
    content, arrays = ask(Answers.of([pack]), type="profile", quantity="bias")
    assert content["first"] == 0
    count, mean, std, low, high, rows = arrays
    assert count.tolist() == list(range(80, 0, -1))
    table = pack.layer(0).arrays["bias.table"][1]
    for found in (mean, low, high):
        np.testing.assert_allclose(found, table, atol=1e-6)
    assert std.max() < 1e-6
    np.testing.assert_allclose(rows, np.nanmean(quantities(pack, 0, 1)["bias"], axis=1))


def test_a_long_head_is_a_preview_until_its_overview_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "FOREGROUND", 1000)
    monkeypatch.setattr(tiles, "overview_level", lambda _: 1)
    monkeypatch.setattr("headscape.captures.overview_file.overview_level", lambda _: 1)
    pack = made(700, lse=False, kind="slope")
    write(pack, tmp_path / "a.safetensors")
    from headscape.captures.capture_file import open_pack

    answers = Answers.of([open_pack(tmp_path / "a.safetensors")])
    content, first = tile(answers, quantity="weights", level=3)
    assert content["preview"] is True
    assert content["exact"] == []
    assert 0 <= content["progress"]["done"] <= 1
    whole = quantities(pack, 0, 1)["weights"]
    row = np.nan_to_num(whole[20])
    np.testing.assert_allclose(first[2][2, 0], row[:8].max(), rtol=1e-5)
    answers.served["p0"].tiles._jobs[0, 1].wait(120)
    content, exact = tile(answers, quantity="weights", level=3)
    assert "preview" not in content
    np.testing.assert_allclose(exact[0][40, 7], whole[320:328, 56:64].mean(), rtol=1e-4)
    np.testing.assert_allclose(exact[2][40, 7], whole[320:328, 56:64].max(), rtol=1e-4)
    np.testing.assert_allclose(exact[1][40, 7], whole[320:328, 56:64].min(), rtol=1e-4)
    # Least and greatest scores of so many pairs are previews, the mean is exact at once.
    content, scores = tile(answers, quantity="final", level=3)
    assert content == {"type": "tile", "request": 7, "preview": True, "exact": ["mean"]}
    final = quantities(pack, 0, 1)["final"]
    np.testing.assert_allclose(scores[0][40, 7], final[320:328, 56:64].mean(), rtol=1e-5)
    content, bias = tile(answers, quantity="bias", level=3)
    assert "preview" not in content
    expected = quantities(pack, 0, 1)["bias"][320:328, 56:64]
    found = [each[40, 7] for each in bias]
    np.testing.assert_allclose(found, [expected.mean(), expected.min(), expected.max()], rtol=1e-5)
    answers.stop()


def test_a_replaced_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(made(60, title="before"), path)
    from headscape.captures.capture_file import open_pack

    answers = Answers.of([open_pack(path)])
    assert answers.packs()[0]["title"] == "before"
    new = made(70, title="after", seed=3)
    write(new, path)
    assert answers.packs()[0]["title"] == "after"
    _, (values,) = ask(answers, type="values", queries=[60, 70], keys=[0, 5])
    np.testing.assert_allclose(
        values.reshape(10, 5), quantities(new, 0, 1)["final"][60:, :5], atol=1e-10
    )
    path.write_bytes(b"damaged")
    content, _ = ask(answers, type="values", queries=[60, 70], keys=[0, 5])
    assert content["type"] == "error"
    assert "not a whole safetensors file" in content["message"]
    path.unlink()
    content, _ = ask(answers, type="values", queries=[60, 70], keys=[0, 5])
    assert content["type"] == "values"


def test_a_text_is_run() -> None:
    texts: list[str] = []

    def run(text: str) -> Any:
        texts.append(text)
        if text == "bad":
            raise InputError("too long.")
        return made(10, title=text)

    answers = Answers.of([made(60), made(60)], [run, None])
    assert answers.can_run
    content, _ = ask(answers, type="run", text="hello")
    assert content["id"] == "p2"
    assert content["pack"]["title"] == "hello"
    assert [each["id"] for each in answers.packs()] == ["p0", "p1", "p2"]
    assert ask(answers, type="run", text="bad")[0]["message"] == "too long."
    for wrong in ("", " \n", None, 5, "x" * 20_001, "\ud800"):
        assert ask(answers, type="run", text=wrong)[0]["type"] == "error"
    said = ask(answers, type="run", text="x" * 20_001)[0]["message"]
    assert said.startswith("a typed text may have at most 20,000 characters, got 20,001: capture")
    assert texts == ["hello", "bad"]
    content, _ = answers.answer({"type": "run", "id": "p1", "text": "hello"})
    assert "no model" in content["message"]


def test_one_text_at_a_time_and_failures_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def run(text: str) -> Any:
        if text == "again":
            said.append(ask(answers, type="run", text="inner")[0]["message"])
            return made(10)
        raise RuntimeError("the kernel is broken")

    answers = Answers.of([made(60)], [run])
    assert ask(answers, type="run", text="again")[0]["type"] == "run"
    assert said == ["the model is reading a text already: wait until it is done."]
    failed = ask(answers, type="run", text="other")[0]["message"]
    assert failed.startswith("the viewer failed (RuntimeError: the kernel is broken)")
    assert "Traceback" in capfd.readouterr().err


WRONG: list[Any] = [
    None,
    5,
    [],
    "text",
    {},
    {"type": 5},
    {"type": ["tile"]},
    {"type": "open", "path": "/etc/passwd"},
    {"type": "tile", "id": "p9"},
    {"type": "tile", "id": ["p0"]},
    {"type": "tile", "level": -1},
    {"type": "tile", "level": 1 << 50},
    {"type": "tile", "level": 1.5},
    {"type": "tile", "level": True},
    {"type": "tile", "level": "0"},
    {"type": "tile", "row": 9},
    {"type": "tile", "layer": 4},
    {"type": "tile", "head": 99},
    {"type": "tile", "quantity": "q"},
    {"type": "tile", "quantity": []},
    {"type": "tile", "minus": "all"},
    {"type": "tile", "minus": []},
    {"type": "tile", "level": 40},
    {"type": "tile", "position": -0.1},
    {"type": "tile", "position": 2.5},
    {"type": "tile", "position": "1"},
    {"type": "tile", "position": True},
    {"type": "tile", "position": float("nan")},
    {"type": "tile", "other": {"id": "p9"}},
    {"type": "values"},
    {"type": "values", "queries": [0, 61], "keys": [0, 1]},
    {"type": "values", "queries": [5, 1], "keys": [0, 1]},
    {"type": "values", "queries": [0.5, 1], "keys": [0, 1]},
    {"type": "values", "queries": "ab", "keys": [0, 1]},
    {"type": "profile", "quantity": None},
    {"type": "run", "text": "hello"},
    {"type": "pack", "id": "../p0"},
]


@pytest.mark.parametrize("message", WRONG, ids=repr)
def test_mistakes_are_one_sentence(message: Any) -> None:
    answers = Answers.of([made()])
    known = {
        "id": "p0",
        "layer": 0,
        "head": 1,
        "quantity": "final",
        "minus": "nothing",
        "level": 0,
        "row": 0,
        "column": 0,
    }
    asked = {**known, **message} if isinstance(message, dict) and "type" in message else message
    content, buffers = answers.answer(asked)
    assert content["type"] == "error"
    assert content["message"].endswith(".")
    assert "\n" not in content["message"]
    assert buffers == []


def test_a_pack_is_sent_whole_or_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers.of([made()])
    assert answers.packs()[0]["tiles"] is False
    content, buffers = answers.answer({"type": "pack", "id": "p0", "request": 1})
    assert content == {"type": "pack", "request": 1, "id": "p0"}
    assert buffers[0][8:].startswith(b'{"__metadata__":{')
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 10)
    assert answers.packs()[0]["tiles"] is True
    assert answers.answer({"type": "pack", "id": "p0"})[0]["type"] == "error"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "cable", "rope", "fire", "cope", "dapev2+kerple"])
def test_a_tile_takes_50_ms(name: str) -> None:
    from headscape.captures.record import capture

    gpt2 = headscape.GPT2.from_preset("nano", encoding=name, vocabulary=257)
    model = headscape.load(gpt2, tokenizer="bytes")
    answers = Answers.of([capture(model, np.arange(512) % 256, layers=[1]).pack()])
    times = []
    for _ in range(5):
        start = time.process_time()
        content, _ = tile(answers, layer=1, quantity="weights", row=1)
        times.append(time.process_time() - start)
        assert content["type"] == "tile"
    assert min(times) <= 0.050
