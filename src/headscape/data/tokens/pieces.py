"""Documents split and grouped into jobs of about a million characters.

A long document is split only between a line that ends in visible text and a line that begins with
it (x NEWLINE | y). No match of GPT-2's pre-tokenizer pattern spans such a place or looks past it,
so the tokens of the pieces are the tokens of the whole. A text without such a place stays in one
piece. A job contains pieces of one split only, in corpus order.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headscape.data.corpus.reading import Document, Split

JOB_CHARACTERS = 1_000_000
CUT = re.compile(r"(?<=\S\n)(?=\S)")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Texts to encode together."""

    split: Split
    """Their split."""
    texts: tuple[str, ...]
    """Pieces in corpus order."""
    ends: tuple[bool, ...]
    """For each piece, whether it is the last of its document."""

    @property
    def characters(self) -> int:
        """Total number of characters."""
        return sum(map(len, self.texts))


def pieces(text: str, size: int = JOB_CHARACTERS) -> Iterator[str]:
    """Split a text into pieces of `size` characters or slightly more."""
    start = 0
    while len(text) - start > size:
        place = CUT.search(text, start + size)
        if place is None:
            break
        yield text[start : place.start()]
        start = place.start()
    yield text[start:]


def jobs(documents: Iterable[Document], size: int = JOB_CHARACTERS) -> Iterator[Job]:
    """Group documents into jobs; each split keeps the corpus order."""
    waiting: dict[Split, list[tuple[str, bool]]] = {"train": [], "validation": []}
    characters: dict[Split, int] = {"train": 0, "validation": 0}
    for document in documents:
        split = document.split
        assert split is not None
        parts = list(pieces(document.text, size))
        for number, part in enumerate(parts, start=1):
            waiting[split].append((part, number == len(parts)))
            characters[split] += len(part)
            if characters[split] >= size:
                yield _job(split, waiting[split])
                waiting[split] = []
                characters[split] = 0
    for split, queue in waiting.items():
        if queue:
            yield _job(split, queue)


def _job(split: Split, queue: list[tuple[str, bool]]) -> Job:
    return Job(
        split=split,
        texts=tuple(text for text, _ in queue),
        ends=tuple(end for _, end in queue),
    )
