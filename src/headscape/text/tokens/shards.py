"""Token shards: flat memory-mapped files with a header that says what they should hold.

    <cache>/<corpus>-<tokenizer>/<split>/tokens.bin    little-endian uint16 or uint32, nothing else
                                         offsets.bin   little-endian uint64: 0, then the end of each
                                                       document (just past its end-of-text)
                                         header.json   format, fingerprints, dtype, counts, and the
                                                       size and SHA-256 of each data file

Folders are named after content, so a run never sees its data change and two processes that write
the same shard write the same bytes. A shard whose header, sizes or checksums do not agree is never
used: `open_shards`, which has the text at hand, reports the file and writes the shard again;
`Shard.open` and `Shard.verify`, which do not, raise. Document names are not kept.
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

from headscape.errors import InputError
from headscape.io.atomic import write_text
from headscape.text.corpus.corpus import Corpus
from headscape.text.corpus.document import SPLITS, Split
from headscape.text.tokenize.tokenizer import Tokenizer
from headscape.text.tokens.workers import token_dtype
from headscape.text.tokens.writing import Side, write_sides

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a shard's data files should hold."""

    format: int
    """Version of this layout."""
    corpus: str
    """Fingerprint of the corpus."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    split: Split
    """Which side of the corpus."""
    dtype: str
    """Of tokens.bin, in numpy's notation."""
    tokens: int
    """Tokens, end-of-texts among them."""
    documents: int
    """Documents."""
    text_bytes: int
    """Bytes of the text in UTF-8, for losses per byte."""
    files: dict[str, dict[str, Any]]
    """Size in bytes and SHA-256 by file name."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One side of a corpus as tokens."""

    folder: Path
    """Where its three files are."""
    header: Header
    """What they should hold."""

    @classmethod
    def open(cls, folder: Path) -> "Shard":
        """Open a shard by its folder; sizes are checked, checksums are `verify`'s."""
        path = folder / "header.json"
        try:
            header = Header(**json.loads(path.read_bytes()))
            sizes = {name: int(facts["bytes"]) for name, facts in header.files.items()}
            agreed = header.format == FORMAT and sizes == {
                "tokens.bin": header.tokens * np.dtype(header.dtype).itemsize,
                "offsets.bin": (header.documents + 1) * 8,
            }
        except OSError as error:
            raise InputError(f"cannot read the shard header {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path) from error
        if not agreed:
            raise _damaged(path)
        for name, size in sizes.items():
            data = folder / name
            if not data.is_file() or data.stat().st_size != size:
                raise _damaged(data)
        return cls(folder=folder, header=header)

    def verify(self) -> None:
        """Read every data file and compare its SHA-256 with the header's."""
        for name, facts in self.header.files.items():
            path = self.folder / name
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts["sha256"]:
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
    """Both sides of a corpus."""

    train: Shard
    """What is learned from."""
    validation: Shard
    """What is held out."""


def shard_folder(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Path:
    """Where the shards of a corpus and a tokenizer are."""
    return cache / f"{corpus.fingerprint()[:16]}-{tokenizer.fingerprint[:16]}"


def open_shards(
    corpus: Corpus, tokenizer: Tokenizer, cache: Path, *, workers: int | None = None
) -> Shards:
    """Open and verify the shards of a corpus, writing them if they are missing or damaged.

    Under several processes one calls this first; the others then call `Shard.open`.
    """
    folder = shard_folder(corpus, tokenizer, cache)
    folders: dict[Split, Path] = {split: folder / split for split in SPLITS}
    if all((path / "header.json").is_file() for path in folders.values()):
        try:
            return _verified(folders, corpus, tokenizer)
        except InputError as error:
            logging.getLogger(__name__).warning("%s", error)
    sides = write_sides(corpus, tokenizer, folders, workers)
    for split, side in sides.items():
        header = _header(corpus, tokenizer, split, side)
        write_text(folders[split] / "header.json", json.dumps(asdict(header), indent=1))
    return _verified(folders, corpus, tokenizer)


def _verified(folders: dict[Split, Path], corpus: Corpus, tokenizer: Tokenizer) -> Shards:
    shards = Shards(
        train=Shard.open(folders["train"]), validation=Shard.open(folders["validation"])
    )
    for split, shard in (("train", shards.train), ("validation", shards.validation)):
        said = (shard.header.corpus, shard.header.tokenizer, shard.header.split)
        if said != (corpus.fingerprint(), tokenizer.fingerprint, split):
            raise _damaged(shard.folder / "header.json")
        shard.verify()
    return shards


def _damaged(path: Path) -> InputError:
    return InputError(f"the shard file {path} is damaged and has to be written again from the text")


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
