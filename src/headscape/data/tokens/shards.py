"""Token shards: flat memory-mapped files with a header of sizes and checksums.

    <cache>/<corpus>-<tokenizer>/<split>/tokens.bin    little-endian uint16 or uint32, nothing else
                                         offsets.bin   little-endian uint64: 0, then the end of each
                                                       document (just past its end-of-text)
                                         header.json   format, fingerprints, dtype, counts, and the
                                                       size and SHA-256 of each data file

Folder names are hashes of the content, so a run's data never changes and two processes that write
the same shard write the same bytes. A shard whose header, sizes or checksums disagree is not used:
`open_shards`, which has the text, reports the file and writes the shard again; `Shard.open` and
`Shard.verify` raise. Document names are not stored.
"""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from headscape.data.corpus.corpus import Corpus
from headscape.data.corpus.reading import SPLITS, Split
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.data.tokens.writing import Side, token_dtype, write_sides
from headscape.errors import InputError
from headscape.io.atomic import write_text
from headscape.io.json_file import parse_json
from headscape.io.system_errors import reporting

FORMAT = 1
DTYPES = ("<u2", "<u4")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the data files of a shard contain."""

    format: int
    """Version of this layout."""
    corpus: str
    """Fingerprint of the corpus."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    split: Split
    """Which split of the corpus."""
    dtype: str
    """Of tokens.bin, in numpy's notation."""
    tokens: int
    """Number of tokens, including end-of-texts."""
    documents: int
    """Number of documents."""
    text_bytes: int
    """Bytes of the text in UTF-8, for losses per byte."""
    files: dict[str, dict[str, Any]]
    """Size in bytes and SHA-256 by file name."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One split of a corpus as tokens."""

    folder: Path
    """The folder of its three files."""
    header: Header
    """What the files contain."""

    def __repr__(self) -> str:
        return f"Shard({str(self.folder)!r}, {self.header.tokens:,} tokens)"

    @classmethod
    def open(cls, folder: Path) -> "Shard":
        """Open a shard and check file sizes; `verify` checks the contents."""
        path = folder / "header.json"
        with reporting("read", f"the shard header {path}"):
            data = path.read_bytes()
        try:
            header = Header(**parse_json(data, path))
            sizes = {name: int(facts["bytes"]) for name, facts in header.files.items()}
            known = header.format == FORMAT and header.dtype in DTYPES
            agreed = known and sizes == {
                "tokens.bin": header.tokens * np.dtype(header.dtype).itemsize,
                "offsets.bin": (header.documents + 1) * 8,
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path) from error
        if not agreed:
            raise _damaged(path)
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise _damaged(file)
        return cls(folder=folder, header=header)

    def verify(self) -> None:
        """Compare the SHA-256 of every data file with the header."""
        for name, facts in self.header.files.items():
            path = self.folder / name
            with reporting("read", path), path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts.get("sha256"):
                    raise _damaged(path)

    @cached_property
    def tokens(self) -> UInt[np.ndarray, " tokens"]:
        """The whole stream, memory-mapped and read-only."""
        return self._mapped("tokens.bin", self.header.dtype)

    @cached_property
    def offsets(self) -> UInt[np.ndarray, " documents_plus_1"]:
        """Document i is tokens[offsets[i] : offsets[i + 1]], its end-of-text included."""
        return self._mapped("offsets.bin", "<u8")

    def _mapped(self, name: str, dtype: str) -> UInt[np.ndarray, " entries"]:
        return np.asarray(np.memmap(self.folder / name, dtype=dtype, mode="r"))


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Both splits of a corpus."""

    train: Shard
    """The training split."""
    validation: Shard
    """The held-out split."""


def shard_folder(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Path:
    """Return the folder of the shards of a corpus and a tokenizer."""
    return cache / f"{corpus.fingerprint()[:16]}-{tokenizer.fingerprint[:16]}"


def open_shards(
    corpus: Corpus, tokenizer: Tokenizer, cache: Path, *, workers: int | None = None
) -> Shards:
    """Open and verify the shards of a corpus, writing them if they are missing or damaged.

    With several processes, one calls this before the others do.
    """
    folder = shard_folder(corpus, tokenizer, cache)
    folders: dict[Split, Path] = {split: folder / split for split in SPLITS}
    if all((path / "header.json").is_file() for path in folders.values()):
        try:
            shards = _opened(folders, corpus, tokenizer)
            shards.train.verify()
            shards.validation.verify()
        except InputError as error:
            logging.getLogger(__name__).warning("%s", error)
        else:
            return shards
    sides = write_sides(corpus, tokenizer, folders, workers)
    for split, side in sides.items():
        header = _header(corpus, tokenizer, split, side)
        write_text(folders[split] / "header.json", json.dumps(asdict(header), indent=1))
    # Their bytes were hashed as they were written.
    return _opened(folders, corpus, tokenizer)


def _opened(folders: dict[Split, Path], corpus: Corpus, tokenizer: Tokenizer) -> Shards:
    shards = Shards(
        train=Shard.open(folders["train"]), validation=Shard.open(folders["validation"])
    )
    for split, shard in (("train", shards.train), ("validation", shards.validation)):
        found = (shard.header.corpus, shard.header.tokenizer, shard.header.split)
        if found != (corpus.fingerprint(), tokenizer.fingerprint, split):
            raise _damaged(shard.folder / "header.json")
    return shards


def _damaged(path: Path) -> InputError:
    return InputError(f"the shard file {path} is damaged: write it again from the text.")


def _header(corpus: Corpus, tokenizer: Tokenizer, split: Split, side: Side) -> Header:
    return Header(
        format=FORMAT,
        corpus=corpus.fingerprint(),
        tokenizer=tokenizer.fingerprint,
        split=split,
        dtype=token_dtype(tokenizer.vocabulary).str,
        tokens=side.tokens,
        documents=side.documents,
        text_bytes=side.text_bytes,
        files={
            name: {"bytes": written.size, "sha256": written.digest.hexdigest()}
            for name, written in side.files.items()
        },
    )
