import errno
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headscape.data.corpus.corpus import open_corpus
from headscape.data.tokenize.tokenizer import open_tokenizer
from headscape.data.tokens import shards
from headscape.data.tokens.shards import Shard, open_shards
from headscape.errors import InputError


@pytest.fixture
def corpus(tmp_path):
    for i in range(60):
        path = tmp_path / "text" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"document number {i}, ünï\n" * (i + 1))
    return open_corpus(str(tmp_path / "text"), tmp_path / "cache")


@pytest.fixture
def tokenizer(corpus):
    return open_tokenizer("bytes", corpus)


def test_tokens_are_the_documents_with_end_of_texts(corpus, tokenizer, tmp_path):
    both = open_shards(corpus, tokenizer, tmp_path / "cache")
    for shard in (both.train, both.validation):
        side = [d.text for d in corpus if d.split == shard.header.split]
        expected = b"".join(np.array([*text.encode(), 256], "<u2").tobytes() for text in side)
        assert (shard.folder / "tokens.bin").read_bytes() == expected
        assert len(shard.offsets) == len(side) + 1 == shard.header.documents + 1
        for i, text in enumerate(side):
            tokens = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]]
            assert tokens[-1] == tokenizer.end_of_text
            assert tokenizer.decode(tokens[:-1]) == text
        assert shard.header.text_bytes == sum(len(text.encode()) for text in side)
        assert shard.header.tokens == len(shard.tokens)
        assert not shard.tokens.flags.writeable
        assert {path.name for path in shard.folder.iterdir()} == {
            "tokens.bin",
            "offsets.bin",
            "header.json",
        }


def test_processes_write_the_same_bytes(corpus, tmp_path, monkeypatch):
    tokenizer = open_tokenizer("bpe:280", corpus)
    monkeypatch.setattr(shards, "JOB_CHARACTERS", 1000)
    one = open_shards(corpus, tokenizer, tmp_path / "one", workers=1)
    two = open_shards(corpus, tokenizer, tmp_path / "two", workers=2)
    assert one.train.header == two.train.header
    assert one.validation.header == two.validation.header
    np.testing.assert_array_equal(one.train.tokens, two.train.tokens)


def test_without_semaphores_one_process_writes_the_same_bytes(corpus, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    tokenizer = open_tokenizer("bytes", corpus)
    plain = open_shards(corpus, tokenizer, tmp_path / "plain")
    monkeypatch.setattr(shards, "MIN_JOBS", 1)
    monkeypatch.setattr(shards, "ProcessPoolExecutor", refused)
    with pytest.warns(UserWarning, match="in one process, .* /dev/shm, .*: Read-only file system"):
        alone = open_shards(corpus, tokenizer, tmp_path / "alone", workers=2)
    assert alone.train.tokens.tolist() == plain.train.tokens.tolist()


def test_reused_until_text_or_tokenizer_changes(corpus, tokenizer, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = open_shards(corpus, tokenizer, cache)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_shards", lambda *_: pytest.fail("written again"))
        again = open_shards(open_corpus(str(tmp_path / "text"), cache), tokenizer, cache)
        assert again.train.folder == first.train.folder
    other = open_shards(corpus, open_tokenizer("bpe:270", corpus), cache)
    assert other.train.folder != first.train.folder
    (tmp_path / "text/3.txt").write_text("changed")
    changed = open_shards(open_corpus(str(tmp_path / "text"), cache), tokenizer, cache)
    assert changed.train.folder != first.train.folder
    first.train.verify()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, truncate, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["train/tokens.bin", "validation/offsets.bin"])
def test_damaged_data_is_named_and_written_again(corpus, tokenizer, tmp_path, caplog, damage, name):
    cache = tmp_path / "cache"
    folder = open_shards(corpus, tokenizer, cache).train.folder.parent
    whole = (folder / name).read_bytes()
    damage(folder / name)
    with pytest.raises(InputError, match=f"{name} is damaged"):
        Shard.open((folder / name).parent).verify()
    with caplog.at_level(logging.WARNING):
        open_shards(corpus, tokenizer, cache)
    assert f"{folder / name} is damaged" in caplog.text
    assert (folder / name).read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"tokens": 1},
        {"dtype": "<u4"},
        {"dtype": "what"},
        {"files": {}},
        {"extra": 1},
        {"corpus": "another"},
    ],
)
def test_damaged_header_is_written_again(corpus, tokenizer, tmp_path, caplog, change):
    cache = tmp_path / "cache"
    path = open_shards(corpus, tokenizer, cache).train.folder / "header.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | change))
    open_shards(corpus, tokenizer, cache)
    assert f"{path} is damaged" in caplog.text
    assert path.read_text() == whole
    path.write_text(whole[:20])
    with pytest.raises(InputError, match=r"header\.json is damaged"):
        Shard.open(path.parent)


def test_a_stop_while_writing_leaves_no_shard(corpus, tokenizer, tmp_path, monkeypatch):
    def stop(job, tokenizer):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "encode_job", stop)
    with pytest.raises(KeyboardInterrupt):
        open_shards(corpus, tokenizer, tmp_path / "new")
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_leftovers_of_a_killed_writer_go_when_they_are_old(corpus, tokenizer, tmp_path):
    folder = shards.shard_folder(corpus, tokenizer, tmp_path) / "train"
    folder.mkdir(parents=True)
    old, young = folder / ".tokens.bin.a.part", folder / ".tokens.bin.b.part"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    open_shards(corpus, tokenizer, tmp_path)
    assert young.exists()
    assert not old.exists()


ENCODE_FOR_EVER = """
import itertools
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokens.shards import EncodingJob
from headscape.data.tokens.shards import encode_all

if __name__ == "__main__":
    job = EncodingJob(split="train", texts=("text" * 1000,), ends=(True,))
    for number, _ in enumerate(encode_all(itertools.repeat(job), ByteTokenizer(), workers=2)):
        if number == 0:
            import multiprocessing
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENCODE_FOR_EVER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert children
    until = time.monotonic() + 20
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_text_that_changes_while_it_is_read(corpus, tokenizer, tmp_path):
    assert corpus.fingerprint()
    (tmp_path / "text/3.txt").write_text("changed")
    with pytest.raises(InputError, match="changed while it was read"):
        open_shards(corpus, tokenizer, tmp_path / "cache")


def test_cache_that_cannot_be_written(corpus, tokenizer, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        open_shards(corpus, tokenizer, tmp_path / "file" / "cache")


def test_missing_shard(tmp_path):
    with pytest.raises(InputError, match="cannot read the shard header"):
        Shard.open(tmp_path)


def test_wide_vocabularies_are_wide_on_disk():
    assert shards.token_dtype(65536) == np.dtype("<u2")
    assert shards.token_dtype(65537) == np.dtype("<u4")
