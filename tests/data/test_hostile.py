"""Files that would hang, exhaust memory or raise from deep inside are refused in a sentence."""

import errno
import gzip
import os
from pathlib import Path

import pytest
import zstandard

from headscape.data.corpus import reading as decompress
from headscape.data.corpus.corpus import open_corpus
from headscape.data.dataset import open_dataset
from headscape.data.tokenize.tokenizer import load_tokenizer
from headscape.data.tokens.shards import Shard
from headscape.errors import InputError


def zeros_gz(size: int) -> bytes:
    return gzip.compress(b"\0" * size, 9)


def zeros_zst(size: int) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(b"\0" * size)


@pytest.mark.parametrize(("suffix", "packed"), [("gz", zeros_gz), ("zst", zeros_zst)])
@pytest.mark.parametrize("inner", ["txt", "jsonl"])
def test_a_bomb_is_refused_at_its_bound(tmp_path, monkeypatch, suffix, packed, inner):
    monkeypatch.setattr(decompress, "SMALL_TOTAL", 1 << 20)
    path = tmp_path / f"a.{inner}.{suffix}"
    path.write_bytes(packed(8 << 20))
    assert path.stat().st_size * decompress.MAX_EXPANSION < 8 << 20
    with pytest.raises(InputError, match=r"expands to more than 1,048,576 bytes") as caught:
        open_corpus(str(path)).fingerprint()
    assert str(path) in str(caught.value)


def test_text_that_compresses_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "SMALL_TOTAL", 1 << 10)
    text = "".join(f"line {n * n % 1001} of a text\n" for n in range(20_000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert "".join(d.text for d in open_corpus(str(tmp_path / "a.txt.gz"))) == text


@pytest.mark.parametrize(("name", "what"), [("a.txt", "document"), ("a.jsonl", "line")])
def test_one_document_has_a_bound(tmp_path, monkeypatch, name, what):
    monkeypatch.setattr(decompress, "MAX_DOCUMENT", 1000)
    (tmp_path / name).write_text("x" * 1001)
    with pytest.raises(InputError, match=f"contains a {what} of more than 1,000 bytes"):
        open_corpus(str(tmp_path / name)).fingerprint()


def test_a_loop_of_links_is_refused(tmp_path):
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    for path in (loop, tmp_path):
        with pytest.raises(InputError, match=r"cannot read .*loop") as caught:
            open_corpus(str(path)).fingerprint()
        assert "\n" not in str(caught.value)


def test_a_path_that_is_none_is_refused():
    for spec in ("a\0b", "~no-such-user/x"):
        with pytest.raises(InputError, match="corpus"):
            open_corpus(spec)


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(InputError, match="not a regular file"):
            open_corpus(str(path)).fingerprint()


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    def closed(_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setattr(decompress, "_open_plain", closed)
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: Permission denied"):
        open_corpus(str(tmp_path)).fingerprint()


def test_nested_json_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text":' + "[" * 200_000)
    with pytest.raises(InputError, match=r"a\.jsonl line 1 is JSON nested too deeply"):
        open_corpus(str(tmp_path / "a.jsonl")).fingerprint()


@pytest.mark.parametrize("header", ["[" * 200_000, "[]", '{"format": 1}', "7"])
def test_a_hostile_header_is_damaged(tmp_path, header):
    (tmp_path / "header.json").write_text(header)
    with pytest.raises(InputError, match=r"header\.json is damaged"):
        Shard.open(tmp_path)


@pytest.mark.parametrize(
    "described",
    [
        {"kind": "bytes", "more": 1},
        {"kind": "bpe"},
        {"kind": "bpe", "json": 7},
        {"kind": "bpe", "json": "{}"},
        {"kind": "bpe", "json": "[" * 200_000},
        {"kind": ["bytes"]},
        {"kind": "gpt2", "fingerprint": "x"},
        {},
    ],
    ids=range(8),
)
def test_a_hostile_tokenizer_is_refused(described):
    with pytest.raises(InputError) as caught:
        load_tokenizer(described)
    assert "\n" not in str(caught.value)


def test_a_dataset_says_what_it_is(tmp_path):
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    dataset = open_dataset(str(tmp_path / "a.txt"), "bytes", tmp_path / "cache")
    assert len(repr(dataset)) < 200
    assert "training tokens" in repr(dataset)
    assert bytes(dataset.document(0)[:-1].tolist()).decode().startswith("some")
    with pytest.raises(InputError, match=r"between 0 and 0 for .*, got 1"):
        dataset.document(1)
    assert Path(dataset.train_side.folder).is_relative_to(tmp_path / "cache")
