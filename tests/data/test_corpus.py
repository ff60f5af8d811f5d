import gzip
import hashlib
import json
import os
import sys
import types

import pytest
import zstandard

from headscape.data.corpus import hub
from headscape.data.corpus.corpus import Corpus, fraction, open_corpus
from headscape.errors import InputError


def contents(corpus):
    return [(document.name, document.text) for document in corpus]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_folder_is_read_in_order_of_path(tmp_path):
    row = json.dumps({"text": "from a row"})
    write(
        tmp_path,
        {
            "b.txt": "b",
            "a/z.md": "z",
            "a-1.py": "x = 1",
            "c.jsonl": f"{row}\n\n{row}\n",
            "d.txt.gz": gzip.compress(b"packed"),
            "e.jsonl.zst": zstandard.compress(row.encode()),
            "blank.txt": " \n",
            "picture.png": b"\xff",
            ".git/x.txt": "hidden",
        },
    )
    assert contents(open_corpus(str(tmp_path))) == [
        ("a/z.md", "z"),
        ("a-1.py", "x = 1"),
        ("b.txt", "b"),
        ("c.jsonl:1", "from a row"),
        ("c.jsonl:3", "from a row"),
        ("d.txt.gz", "packed"),
        ("e.jsonl.zst:1", "from a row"),
    ]


def test_line_endings_and_marks_stay(tmp_path):
    write(tmp_path, {"a.txt": "\ufeffone\r\ntwo\r", "b.txt": "b"})
    assert contents(open_corpus(str(tmp_path)))[0][1] == "\ufeffone\r\ntwo\r"


def test_fingerprint_is_of_names_and_texts_only(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder, {"a.txt": "alpha", "b.txt": "beta"})
    one = open_corpus(str(tmp_path / "one")).fingerprint()
    assert one == open_corpus(str(tmp_path / "two")).fingerprint()
    (tmp_path / "two/b.txt").write_text("betb")
    changed = open_corpus(str(tmp_path / "two")).fingerprint()
    (tmp_path / "one/b.txt").rename(tmp_path / "one/c.txt")
    renamed = open_corpus(str(tmp_path / "one")).fingerprint()
    assert len({one, changed, renamed}) == 3


def test_survey_is_remembered_until_a_file_changes(tmp_path, monkeypatch):
    write(tmp_path / "text", {"a.txt": "alpha", "b.txt": "beta"})
    cache = tmp_path / "cache"
    first = open_corpus(str(tmp_path / "text"), cache).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(Corpus, "_take_survey", lambda _: pytest.fail("read again"))
        assert open_corpus(str(tmp_path / "text"), cache).fingerprint() == first
    (tmp_path / "text/a.txt").write_text("alphb")
    os.utime(tmp_path / "text/a.txt", ns=(1, 1))
    assert open_corpus(str(tmp_path / "text"), cache).fingerprint() != first
    for memo in (cache / "surveys").iterdir():
        memo.write_text('{"fing')
    assert open_corpus(str(tmp_path / "text"), cache).fingerprint() != first


def test_change_after_opening_is_noticed(tmp_path):
    write(tmp_path, {"a.txt": "alpha", "b.txt": "beta"})
    corpus = open_corpus(str(tmp_path))
    corpus.check_unchanged()
    (tmp_path / "a.txt").write_text("longer than before")
    with pytest.raises(InputError, match="changed while it was read"):
        corpus.check_unchanged()


def test_split_is_the_hash_of_the_name(tmp_path):
    write(tmp_path, {f"{i}.txt": f"text {i}" for i in range(400)})
    sides = {document.name: document.split for document in open_corpus(str(tmp_path))}
    for name, side in sides.items():
        first = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)
        assert (side == "validation") == (first / 2**64 < 0.05)
    assert 5 < list(sides.values()).count("validation") < 40
    write(tmp_path, {"new.txt": "new"})
    grown = {document.name: document.split for document in open_corpus(str(tmp_path))}
    assert sides.items() <= grown.items()


@pytest.mark.parametrize("held_out", [False, True])
def test_two_documents_fill_both_sides(tmp_path, held_out):
    names = [name for i in range(200) if (fraction(name := f"{i}.txt") < 0.05) == held_out]
    write(tmp_path, dict.fromkeys(names[:2], "text"))
    sides = [document.split for document in open_corpus(str(tmp_path))]
    assert sorted(sides) == ["train", "validation"]


@pytest.mark.parametrize(
    "text", ["a line of text\n" * 100, "no line break at all" * 50, "\n" + "x" * 99]
)
def test_one_document_is_cut(tmp_path, text):
    write(tmp_path, {"book.txt": text})
    train, held = open_corpus(str(tmp_path / "book.txt"))
    assert train.text + held.text == text
    assert (train.split, held.split) == ("train", "validation")
    assert 0.89 < len(train.text) / len(text) <= 0.95
    assert train.text.endswith("\n") or "\n" not in text[1:]


def test_standard_library():
    corpus = open_corpus("stdlib")
    names = [name for name, _ in contents(corpus)]
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if {"test", "tests"} & set(name.split("/"))]
    assert not [name for name in names if "sysconfigdata" in name or "site-packages" in name]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert 8e6 < corpus.survey.characters < 20e6


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\n", "is empty"),
        ("a.txt", "Köln".encode("latin-1"), r"a\.txt is not UTF-8: byte 0xf6 at offset 1:"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}', r"not UTF-8: byte 0xff at offset 24:"),
        ("a.jsonl", b'{"text": "x"}\n{"text"', r"a\.jsonl line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}', r'line 2 has no string field "text"'),
        ("a.jsonl", b"[1]", r'line 1 has no string field "text"'),
        ("a.jsonl", b'{"text": "\\ud800"}', r"line 1 has half of a surrogate pair"),
        ("a.txt.bz2", b"x", r"compressed as \.bz2"),
        ("a.txt.gz", b"not gzip", r"a\.txt\.gz is not a complete \.gz file"),
        (
            "a.txt.gz",
            gzip.compress(b"x" * 999, mtime=0)[:-9],
            r"a\.txt\.gz is not a complete \.gz file",
        ),
        ("a.txt.zst", b"not zstd", r"a\.txt\.zst is not a complete \.zst file"),
    ],
)
@pytest.mark.parametrize("whole_folder", [False, True])
def test_bad_text_is_one_sentence(tmp_path, name, data, message, whole_folder):
    write(tmp_path, {name: data})
    path = tmp_path if whole_folder else tmp_path / name
    with pytest.raises(InputError, match=message) as caught:
        open_corpus(str(path)).fingerprint()
    assert "\n" not in str(caught.value)


def test_bad_path(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        open_corpus(str(tmp_path / "nowhere.txt"))
    write(tmp_path, {"picture.png": b"x"})
    with pytest.raises(InputError, match=r"contains no \.txt"):
        open_corpus(str(tmp_path))
    with pytest.raises(InputError, match="corpus is empty"):
        open_corpus("")


def test_a_named_file_is_text_whatever_its_suffix(tmp_path):
    write(tmp_path, {"notes": "some text\n" * 20})
    assert "".join(text for _, text in contents(open_corpus(str(tmp_path / "notes")))).startswith(
        "some"
    )


class StandIn(types.ModuleType):
    """As much of `datasets` as is used."""

    def __init__(self, rows):
        super().__init__("datasets")
        self.rows = rows
        self.asked = []

    def load_dataset_builder(self, dataset, config, *, revision):
        self.asked.append((dataset, config, revision))
        if dataset == "no/such":
            raise FileNotFoundError("Dataset 'no/such'\ndoesn't exist")
        return types.SimpleNamespace(
            hash="c0ffee", as_streaming_dataset=lambda split: iter(self.rows[split])
        )


def rows(*texts):
    return [{"text": text} for text in texts]


def test_hugging_face_rows(monkeypatch):
    module = StandIn({"train": rows(*(f"row {i}" for i in range(300)), "")})
    monkeypatch.setitem(sys.modules, "datasets", module)
    corpus = open_corpus("hf:some/data:small@v2")
    documents = list(corpus)
    assert module.asked == [("some/data", "small", "v2")]
    assert [d.text for d in documents] == [f"row {i}" for i in range(300)]
    assert {d.split for d in documents} == {"train", "validation"}
    assert corpus.fingerprint() != open_corpus("hf:some/data:large").fingerprint()


def test_pinned_commit_needs_no_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert open_corpus(f"hf:some/data@{'a' * 40}").fingerprint()
    with pytest.raises(InputError, match=r"pip install 'headscape\[datasets\]'"):
        open_corpus("hf:some/data")


def test_fineweb_edu_has_the_papers_settings(monkeypatch):
    module = StandIn({"train": rows(*map(str, range(3000)))})
    monkeypatch.setitem(sys.modules, "datasets", module)
    held_out = [d for d in open_corpus("fineweb-edu") if d.split == "validation"]
    assert module.asked == [("HuggingFaceFW/fineweb-edu", "sample-10BT", None)]
    assert 10 < len(held_out) < 60


def test_wikitext_lines_become_articles(monkeypatch):
    first = ["", " = One = \n", "", " Text . \n", " = = Part = = \n", " More . \n"]
    second = [" = Two = \n", " Text . \n"]
    module = StandIn({"train": rows(*first, *second), "validation": rows(*second)})
    monkeypatch.setitem(sys.modules, "datasets", module)
    documents = list(open_corpus("hf:wikitext-103"))
    assert module.asked == [("Salesforce/wikitext", "wikitext-103-raw-v1", None)]
    assert [(d.split, d.text) for d in documents] == [
        ("train", "".join(first)),
        ("train", "".join(second)),
        ("validation", "".join(second)),
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:no/such", "cannot stream no/such from Hugging Face: Dataset 'no/such' doesn't exist"),
        ("hf:", "names no dataset"),
        ("hf:other/fields", 'has no string field "text"'),
    ],
)
def test_hugging_face_mistakes(monkeypatch, spec, message):
    monkeypatch.setitem(sys.modules, "datasets", StandIn({"train": [{"body": "x"}]}))
    with pytest.raises(InputError, match=message) as caught:
        list(open_corpus(spec))
    assert "\n" not in str(caught.value)


def test_shortcuts_are_what_the_paper_says():
    assert hub.SHORTCUTS["fineweb-edu"].validation_share == 0.01
    assert hub.SHORTCUTS["wikitext-103"].own_validation
