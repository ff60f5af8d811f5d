"""`python -m docs.site.check`: what it checks holds, and it notices what does not."""

import re
from pathlib import Path

import pytest

from docs.site import check


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return check.read()


def test_the_pages_are_right() -> None:
    assert check.problems() == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.md", "there is no nowhere.md"),
        ("atlas.md#no-such-heading", "atlas.md#no-such-heading has no such section"),
        ("#no-such-heading", "#no-such-heading has no such section"),
    ],
)
def test_a_broken_link_is_noticed(pages: dict[str, str], target: str, said: str) -> None:
    changed = pages | {"docs/faq.md": f"{pages['docs/faq.md']}\n[more]({target})\n"}
    assert list(check.broken_links(changed)) == [f"docs/faq.md: {said}"]


def test_a_link_to_a_heading_with_code_and_marks_is_right() -> None:
    text = "# One\n\n## At 8,192 tokens: `far` [more](a.md)\n\n```\n# no heading\n```\n"
    assert check.anchors(text) == {"one", "at-8192-tokens-far-more"}


def test_a_picture_on_no_page_and_a_large_one_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "docs/images").mkdir(parents=True)
    for name, size in {"a.png": 300_001, "b.png": 9, "c.gif": 2_900_000}.items():
        (tmp_path / "docs/images" / name).write_bytes(bytes(size))
    text = "![](images/a.png) ![](images/c.gif)"
    assert list(check.pictures({"docs/a.md": text})) == [
        "a.png has 300,001 bytes",
        "b.png is on no page",
    ]


def test_a_missing_page_is_noticed() -> None:
    assert list(check.missing_pages({"Tutorials": ["tutorial", "gallery", "nowhere"]})) == [
        "Tutorials: there is no docs/nowhere.md"
    ]


@pytest.mark.parametrize("number", range(len(check.SAME)))
def test_a_number_that_differs_on_one_page_is_noticed(pages: dict[str, str], number: int) -> None:
    for name, pattern in check.SAME[number].items():
        text = " ".join(pages[name].split())
        found = re.search(pattern, text)
        assert found, f"{name}: {pattern}"
        wrong = text[: found.start(1)] + "0" + text[found.start(1) :]
        lines = list(check.different_numbers(pages | {name: wrong}))
        assert any(name in line for line in lines), name


def test_a_repeated_number_is_noticed_in_sentences_alone(pages: dict[str, str]) -> None:
    for text, count in [("took 7.531 s", 1), ("| took | 7.531 |", 0), ("`7.531`", 0)]:
        more = {name: f"{pages[name]}\n\n{text}\n" for name in ("docs/faq.md", "README.md")}
        found = list(check.repeated_numbers(pages | more))
        assert len(found) == count, text
        assert all(line.startswith("7.531 is on README.md, docs/faq.md") for line in found)


def test_accidental_numbers_still_stand_on_several_pages(
    pages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = set(check.ACCIDENTAL)
    monkeypatch.setattr(check, "ACCIDENTAL", {})
    assert {line.split()[0] for line in check.repeated_numbers(pages)} == listed
