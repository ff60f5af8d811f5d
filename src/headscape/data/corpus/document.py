"""A document, and the protocol of a source of documents.

A corpus is a sequence of documents in a fixed order. The rest of the package sees only order, names
and texts, not where they were read from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text; its tokens are followed by an end-of-text token."""

    name: str
    """Unique in its corpus and the same on every machine: a relative path or a row number."""
    text: str
    """Never blank; line endings unchanged."""
    split: Split | None = None
    """Its split, where the source publishes one; None lets the hash of the name decide."""


@runtime_checkable
class Source(Protocol):
    """A place that documents are read from."""

    @property
    def validation_share(self) -> float:
        """Fraction of documents held out for validation."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether `stamp` identifies the content permanently, so that it need not be surveyed."""
        ...

    def stamp(self) -> str:
        """Identify the present content without reading it: sizes and times, or a revision."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yield every non-blank document, always in the same order."""
        ...
