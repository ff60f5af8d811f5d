"""A corpus: documents in a fixed order, with a fingerprint and a train/validation split.

Split. A document is held out for validation when the first 8 bytes of the SHA-256 of its name, read
as a fraction in [0, 1), are below the source's validation share (5%). The split depends on the name
alone, so adding a document never moves others. If that leaves one side empty, the document with
the lowest fraction goes to validation, or the one with the highest to training, so two documents
are enough. A corpus of one document is cut in two at the last line break between 90% and 95% of
its characters (at 95% if there is none).

Fingerprint. SHA-256 over names and texts in order, from one pass over the text (a survey) that is
cached under the source's stamp (sizes and times). Sources pinned to a revision are not surveyed:
their fingerprint is the hash of their stamp, and both sides are assumed to be non-empty.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from headscape.data.corpus.hub import SHORTCUTS, streamed
from headscape.data.corpus.reading import Document, Source, Split, file_or_folder, standard_library
from headscape.errors import InputError
from headscape.io.files import read_json, write_text


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The result of reading a corpus once."""

    fingerprint: str
    """SHA-256 over names and texts, in hexadecimal."""
    documents: int
    """Number of documents, before a single one is cut in two."""
    characters: int
    """Total number of characters."""
    forced: dict[str, Split]
    """The document that was moved to fill an empty side, if any."""


class Corpus:
    """The documents of a spec; iterating yields them with their splits."""

    def __init__(self, spec: str, source: Source, cache: Path | None = None):
        self.spec = spec
        # Taken before anything is read, so that check_unchanged notices a change while reading.
        self._stamp = source.stamp()
        self._source = source
        self._cache = cache

    def __repr__(self) -> str:
        return f"Corpus({self.spec!r})"

    def __iter__(self) -> Iterator[Document]:
        for document in self._source.documents():
            if self.survey is not None and self.survey.documents == 1:
                yield from cut(document, 1 - self._source.validation_share)
            else:
                yield replace(document, split=self.split(document))

    def split(self, document: Document) -> Split:
        """Return the split of a document."""
        if document.split is not None:
            return document.split
        if self.survey is not None and document.name in self.survey.forced:
            return self.survey.forced[document.name]
        held_out = fraction(document.name) < self._source.validation_share
        return "validation" if held_out else "train"

    def fingerprint(self) -> str:
        """Return a hash of the content: equal fingerprints mean equal documents in equal order."""
        if self.survey is None:
            return hashlib.sha256(self._stamp.encode()).hexdigest()
        return self.survey.fingerprint

    def check_unchanged(self) -> None:
        """Raise if the source changed since it was opened."""
        if self._source.stamp() != self._stamp:
            raise InputError(f"the corpus {self.spec} changed while it was read: start again.")

    @cached_property
    def survey(self) -> Survey | None:
        """The result of reading everything once; None for a pinned source."""
        if self._source.pinned:
            return None
        if self._cache is None:
            return self._take_survey()
        key = hashlib.sha256(f"1 {self._stamp}".encode()).hexdigest()
        cached = self._cache / "surveys" / f"{key[:32]}.json"
        try:
            return Survey(**read_json(cached))
        except (InputError, TypeError):
            survey = self._take_survey()
            write_text(cached, json.dumps(asdict(survey)))
            return survey

    def _take_survey(self) -> Survey:
        digest = hashlib.sha256()
        documents = characters = held_out = 0
        lowest, highest = (1.0, ""), (-1.0, "")
        for document in self._source.documents():
            for part in (document.name.encode(errors="surrogateescape"), document.text.encode()):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)
            mark = (fraction(document.name), document.name)
            lowest, highest = min(lowest, mark), max(highest, mark)
            documents += 1
            characters += len(document.text)
            held_out += mark[0] < self._source.validation_share
        if documents == 0:
            raise InputError(f"the corpus {self.spec} is empty: none of its files contains text.")
        forced: dict[str, Split] = {}
        if held_out == 0:
            forced = {lowest[1]: "validation"}
        elif held_out == documents:
            forced = {highest[1]: "train"}
        return Survey(
            fingerprint=digest.hexdigest(),
            documents=documents,
            characters=characters,
            forced=forced,
        )


def fraction(name: str) -> float:
    """Return the hash of a name as a number in [0, 1)."""
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    # 53 bits, so that the quotient is exact and never rounds up to 1.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def cut(document: Document, share: float) -> Iterator[Document]:
    """Cut a document in two, at a line break shortly before `share` of its characters."""
    text = document.text
    limit = int(len(text) * share)
    at = text.rfind("\n", int(len(text) * (share - 0.05)), limit) + 1 or limit
    sides: list[tuple[Split, str]] = [("train", text[:at]), ("validation", text[at:])]
    for side, part in sides:
        yield Document(name=f"{document.name}#{side}", text=part, split=side)


def is_named(spec: str) -> bool:
    """Return whether a spec is a name (stdlib, hf:DATASET, a shortcut) and not a path."""
    return spec == "stdlib" or spec.startswith("hf:") or spec.partition("@")[0] in SHORTCUTS


def open_corpus(spec: str, cache: Path | None = None) -> Corpus:
    """Open `stdlib`, a shortcut, `hf:<dataset>[:config]` or a path.

    Write ./stdlib for a file or folder that has one of these names.
    """
    if spec == "stdlib":
        return Corpus(spec, standard_library(), cache)
    if is_named(spec):
        return Corpus(spec, streamed(spec.removeprefix("hf:")), cache)
    if not spec:
        raise InputError("the corpus is empty: give a file, a folder, stdlib or hf:DATASET.")
    return Corpus(spec, file_or_folder(Path(spec)), cache)
