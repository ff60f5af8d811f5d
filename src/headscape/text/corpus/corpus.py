"""A corpus: documents in a fixed order, one fingerprint, two sides.

Sides. A document is held out for validation when the first 8 bytes of the SHA-256 of its name, as a
fraction of their range, are below the source's share (5%): a function of the name alone, so adding
a document never moves another. Where that leaves a side of a surveyed corpus empty, the document
with the lowest fraction goes to validation or the one with the highest to training, so two
documents are enough for both sides. A corpus of one document is cut into two at the last line break
between 90% and 95% of its characters (at 95% where there is no line break).

Fingerprint. SHA-256 over names and texts in order, from a survey that reads everything once and is
remembered under the source's stamp (sizes and times) in the cache folder. Sources that are pinned
to a revision are not surveyed: their stamp is the fingerprint, and their hash is trusted to fill
both sides.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from headscape.errors import InputError
from headscape.io.atomic import write_text
from headscape.text.corpus.document import Document, Source, Split
from headscape.text.corpus.hub import SHORTCUTS, streamed
from headscape.text.corpus.sources import file_or_folder, standard_library


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one reading of a corpus found."""

    fingerprint: str
    """SHA-256 over names and texts, in hexadecimal."""
    documents: int
    """How many documents there are before a single one is cut."""
    characters: int
    """Their length together."""
    forced: dict[str, Split]
    """The document whose side is not its hash's, if any."""


class Corpus:
    """Documents by spec; iterate over it for the documents with their sides."""

    def __init__(self, spec: str, source: Source, cache: Path | None = None):
        self.spec = spec
        # Taken before anything is read, so that a change during the reading shows.
        self._stamp = source.stamp()
        self._source = source
        self._cache = cache

    def __iter__(self) -> Iterator[Document]:
        for document in self._source.documents():
            if self.survey is not None and self.survey.documents == 1:
                yield from cut(document, 1 - self._source.validation_share)
            else:
                yield replace(document, split=self.split(document))

    def split(self, document: Document) -> Split:
        """Say which side a document is on."""
        if document.split is not None:
            return document.split
        if self.survey is not None and document.name in self.survey.forced:
            return self.survey.forced[document.name]
        held_out = fraction(document.name) < self._source.validation_share
        return "validation" if held_out else "train"

    def fingerprint(self) -> str:
        """Name the content: equal fingerprints mean equal documents in equal order."""
        if self.survey is None:
            return hashlib.sha256(self._stamp.encode()).hexdigest()
        return self.survey.fingerprint

    def check_unchanged(self) -> None:
        """Raise when the source no longer is what the fingerprint was taken of."""
        if self._source.stamp() != self._stamp:
            raise InputError(f"the corpus {self.spec} changed while it was read; start again")

    @cached_property
    def survey(self) -> Survey | None:
        """What a whole reading found; None for a pinned source."""
        if self._source.pinned:
            return None
        if self._cache is None:
            return self._take_survey()
        key = hashlib.sha256(f"1 {self._stamp}".encode()).hexdigest()
        memo = self._cache / "surveys" / f"{key[:32]}.json"
        try:
            return Survey(**json.loads(memo.read_bytes()))
        except (OSError, ValueError, TypeError):
            survey = self._take_survey()
            write_text(memo, json.dumps(asdict(survey)))
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
            raise InputError(f"the corpus {self.spec} is empty: no text in any of its files")
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
    """Where a name falls in [0, 1)."""
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


def open_corpus(spec: str, cache: Path | None = None) -> Corpus:
    """Open `stdlib`, a shortcut, `hf:<dataset>[:config]` or a path.

    A file or folder that is called like one of the names is reached as ./stdlib.
    """
    if spec == "stdlib":
        return Corpus(spec, standard_library(), cache)
    if spec.startswith("hf:") or spec.partition("@")[0] in SHORTCUTS:
        return Corpus(spec, streamed(spec.removeprefix("hf:")), cache)
    if not spec:
        raise InputError("the corpus has no name; give a file, a folder, stdlib or hf:<dataset>")
    return Corpus(spec, file_or_folder(Path(spec)), cache)
