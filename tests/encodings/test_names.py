"""Encodings by name: titles, the rows of the table, and what users and packages add."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from headscape.encodings import (
    ENCODINGS,
    WRAPPERS,
    Encoding,
    build,
    kinds,
    list_encodings,
    register,
    registry,
    slug,
    title,
)
from headscape.encodings.alibi import ALiBi
from headscape.encodings.catalogue import markdown, write_table
from headscape.encodings.dape import DAPE
from headscape.encodings.registry import check_entry
from headscape.errors import InputError

SHAPE = {"heads": 2, "head_dim": 4, "width": 8, "train_length": 16}


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """Put the tables back after a test."""
    encodings_before, wrappers_before = dict(ENCODINGS), dict(WRAPPERS)
    yield
    for table, before in ((ENCODINGS, encodings_before), (WRAPPERS, wrappers_before)):
        table.clear()
        table.update(before)


class Mine(ALiBi):
    """An encoding without a title."""


class MyWrapper(DAPE):
    """A wrapper of one's own."""

    title = "Wrapped"


def test_every_class_has_its_own_title_paper_and_formula() -> None:
    kinds = [*ENCODINGS.values(), *WRAPPERS.values()]
    for kind in kinds:
        assert kind.title
        assert kind.paper
        assert kind.formula
        assert kind.shows in {"bias", "final", "weights", None}
    assert len({kind.title for kind in kinds}) == len(kinds)
    assert len({kind.formula for kind in kinds}) == len(kinds)
    assert Mine.title == "Mine", "not the parent's"


def test_titles_and_slugs_are_the_papers() -> None:
    assert title("fire") == "Fire"
    assert title("t5-clipped") == "T5-bias"
    assert title("dapev2+kerple") == "DAPEv2+Kerple"
    assert title("dapev2+none") == "DAPEv2+NoPE"
    assert slug("t5-clipped") == "t5-bias"
    assert slug("dapev2+cable") == "dapev2-cable"
    with pytest.raises(InputError, match="unknown encoding 'tire': did you mean 'fire'"):
        title("tire")


def test_a_registered_encoding_is_like_any_other() -> None:
    register("mine", Mine)
    register("wrapped", MyWrapper)
    assert isinstance(build("mine", **SHAPE, slopes="mpt"), Mine)
    assert isinstance(build("wrapped+mine", **SHAPE), MyWrapper)
    assert kinds("wrapped+mine") == (MyWrapper, (Mine,))
    assert title("wrapped+mine") == "Wrapped+Mine"
    assert "mine" in [row.name for row in list_encodings()]
    assert "`mine`" not in markdown(), "the README lists the package's own"


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("alibi", Mine, "there is already an encoding named 'alibi': give Mine a different name"),
        ("dape", Mine, "already an encoding named 'dape'"),
        ("none", Mine, "already an encoding named 'none'"),
        ("my+name", Mine, r"lower-case letters, digits, - and _, got 'my\+name'"),
        ("", Mine, "lower-case letters"),
        (3, Mine, "lower-case letters"),
        ("mine", int, "must be a subclass of headscape.Encoding, got <class 'int'>"),
        ("mine", "Mine", "must be a subclass"),
    ],
)
def test_what_cannot_be_registered(name: str, kind: type, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_entry(name, kind)


def test_a_refused_name_changes_nothing() -> None:
    before = dict(ENCODINGS)
    with pytest.raises(InputError, match="already an encoding named 'fire'"):
        register("fire", Mine)
    assert before == ENCODINGS


def test_rows_say_what_the_classes_say() -> None:
    rows = {row.name: row for row in list_encodings()}
    assert list(rows) == [*ENCODINGS, "dape+kerple", "dapev2+kerple"]
    for name, row in rows.items():
        made = build(name, heads=12, head_dim=64, width=768, train_length=512)
        assert (row.paper, row.formula, row.claims) == (made.paper, made.formula, made.claims())
        assert row.parameters == sum(value.numel() for value in made.parameters())
        assert row.title == title(name)
    assert rows["alibi"].letters == "STP-"
    assert rows["cable"].letters == "S-PC"
    assert repr(rows["t5"]) == (
        "t5: T5 buckets, Raffel et al. 2020, arXiv:1910.10683; S = A + r_h[bucket(i-j)]; STP-; "
        "384 parameters"
    )
    small = {row.name: row for row in list_encodings(heads=2, head_dim=4, width=8, train_length=16)}
    assert small["learned"].parameters == 16 * 8
    assert small["cable"].parameters == 2 * (8 * 2 + 2)


def test_the_table_is_written_between_its_marks(tmp_path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- encodings -->\nold\n<!-- /encodings -->\nafter\n")
    write_table(page)
    text = page.read_text()
    assert text == f"before\n<!-- encodings -->\n{markdown()}\n<!-- /encodings -->\nafter\n"
    page.write_text("no marks")
    with pytest.raises(InputError, match="must contain <!-- encodings -->"):
        write_table(page)


def install(monkeypatch: pytest.MonkeyPatch, **entries: str) -> list[str]:
    """Pretend that a package provides these entries; the names asked for are recorded."""
    asked: list[str] = []
    installed = EntryPoints(
        EntryPoint(name, value, "headscape.encodings") for name, value in entries.items()
    )

    def select(*, group: str, **params: str) -> EntryPoints:
        asked.append(params.get("name", "all"))
        return installed.select(group=group, **params)

    monkeypatch.setattr(registry, "entry_points", select)
    return asked


def test_an_installed_encoding_is_loaded_when_its_name_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = install(monkeypatch, theirs=f"{__name__}:Mine", wrap=f"{__name__}:MyWrapper")
    build("alibi", **SHAPE)
    assert asked == []
    assert isinstance(build("theirs", **SHAPE), Encoding)
    assert asked == ["theirs"]
    assert isinstance(build("wrap+theirs", **SHAPE), MyWrapper)
    assert asked == ["theirs", "wrap"]


def test_the_table_lists_installed_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, theirs=f"{__name__}:Mine")
    assert "theirs" in [row.name for row in list_encodings()]


@pytest.mark.parametrize(
    "value", ["no_such_module:Theirs", "math:Theirs", "math:pi", f"{__name__}:install"]
)
def test_a_broken_package_gives_one_sentence(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    install(monkeypatch, broken=value)
    build("alibi", **SHAPE)
    with pytest.raises(
        InputError, match=r"^the encoding 'broken' of the package .* cannot be loaded"
    ):
        build("broken", **SHAPE)
    with pytest.raises(InputError, match="'broken'"):
        list_encodings()
