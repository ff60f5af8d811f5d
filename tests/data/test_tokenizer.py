import hashlib
import inspect
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscape.data.corpus.corpus import open_corpus
from headscape.data.tokenize import bpe as gpt2_bpe
from headscape.data.tokenize.bpe import pieces
from headscape.data.tokenize.tokenizer import load_tokenizer, open_tokenizer
from headscape.data.tokens import shards
from headscape.data.tokens.shards import jobs
from headscape.errors import InputError

SAMPLE = "def f(x):\n    return x  # ünï 漢字 🙂\n\n\n\ttail  \r\n it's   'll 42!! \x1c\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"the cat {i} sat on the mat and the hat\n" * 20 + SAMPLE)
    return open_corpus(str(folder))


@pytest.fixture(scope="module", params=["bytes", "bpe:300", "gpt2"])
def tokenizer(request, corpus):
    return open_tokenizer(request.param, corpus)


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids) == text


def test_end_of_text_never_comes_from_text(tokenizer):
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
    ends = np.array([*tokenizer.encode("a"), tokenizer.end_of_text, *tokenizer.encode("b")])
    assert tokenizer.decode(ends) == "a<|endoftext|>b"
    assert tokenizer.end_of_text == tokenizer.vocabulary - 1


def test_description_survives_json(tokenizer):
    again = load_tokenizer(json.loads(json.dumps(tokenizer.describe())))
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.vocabulary, again.end_of_text) == (tokenizer.vocabulary, tokenizer.end_of_text)
    np.testing.assert_array_equal(again.encode(SAMPLE), tokenizer.encode(SAMPLE))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("ab \n\t'.s1é\u3000\x1c\u2028")), size=st.integers(1, 6))
def test_pieces_have_the_tokens_of_the_whole(text, size):
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    whole = gpt2_bpe.gpt2().encode(text).ids
    assert [token for part in parts for token in gpt2_bpe.gpt2().encode(part).ids] == whole


def test_jobs_keep_order_and_ends(corpus, monkeypatch):
    monkeypatch.setattr(shards, "JOB_CHARACTERS", 100)
    documents = list(corpus)
    for split in ("train", "validation"):
        texts, current = [], ""
        for job in jobs(documents):
            if job.split == split:
                for text, end in zip(job.texts, job.ends, strict=True):
                    current += text
                    if end:
                        texts.append(current)
                        current = ""
        assert texts == [d.text for d in documents if d.split == split]


def test_vocabularies(corpus):
    assert open_tokenizer("bytes", corpus).vocabulary == 257
    assert open_tokenizer("bpe:300", corpus).vocabulary == 300
    assert open_tokenizer("gpt2", corpus).vocabulary == 50257
    merges_run_out = open_tokenizer("bpe:60000", corpus)
    assert merges_run_out.vocabulary < 2000
    assert merges_run_out.encode(SAMPLE).max() < merges_run_out.end_of_text


def test_bpe_is_deterministic_and_kept(corpus, tmp_path):
    fresh = open_tokenizer("bpe:320", corpus)
    kept = open_tokenizer("bpe:320", corpus, tmp_path)
    assert fresh.fingerprint == kept.fingerprint
    (path,) = (tmp_path / "tokenizers").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"merges", b"mergez"))
    assert open_tokenizer("bpe:320", corpus, tmp_path).fingerprint == fresh.fingerprint
    assert path.read_bytes() == whole


def test_bpe_learns_from_the_training_side_only(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa bbbb\n" * 950 + "qqqqzzzz\n" * 55)
    tokenizer = open_tokenizer("bpe:400", open_corpus(str(tmp_path)))
    assert len(tokenizer.encode("aaaa bbbb")) == 2
    assert len(tokenizer.encode("qqqqzzzz")) == 8


def test_gpt2_files_are_the_published_ones(monkeypatch, tmp_path):
    folder = gpt2_bpe.data_folder()
    for name, sha256 in gpt2_bpe.PUBLISHED.items():
        data = (folder / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256
        (tmp_path / name).write_bytes(data[:-1])
    monkeypatch.setattr(gpt2_bpe, "data_folder", lambda: tmp_path)
    with pytest.raises(InputError, match=r"encoder\.json is not the file"):
        gpt2_bpe.gpt2.__wrapped__()


def test_gpt2_agrees_with_transformers(corpus):
    transformers = pytest.importorskip("transformers")
    folder = gpt2_bpe.data_folder()
    merges = [tuple(line.split()) for line in (folder / "vocab.bpe").read_text().splitlines()[1:]]
    vocabulary = json.loads((folder / "encoder.json").read_text())
    theirs = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    ours = open_tokenizer("gpt2", corpus)
    text = inspect.getsource(json.decoder) + SAMPLE
    assert ours.encode(text).tolist() == theirs.encode(text)
    assert theirs.eos_token_id == ours.end_of_text
    assert ours.encode("Hello world").tolist() == [15496, 995]


@pytest.mark.parametrize(
    "spec", ["", "bpe", "bpe:", "bpe:x", "bpe:12", "bpe:-300", "gpt3", "bytes:2"]
)
def test_unknown_tokenizer(spec, corpus):
    with pytest.raises(InputError, match=r"tokenizer|needs N between"):
        open_tokenizer(spec, corpus)
    with pytest.raises(InputError, match="kind of tokenizer"):
        load_tokenizer({"kind": f"{spec}?"})
