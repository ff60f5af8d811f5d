"""A document, and what a place that documents come from has to offer.

A corpus is a sequence of documents in a fixed order. The order, the names and the texts are all
that the rest of the package sees; where they were read from stays in the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text that ends with an end-of-text token once it is tokens."""

    name: str
    """Unique in its corpus, the same on every machine (a relative path, a row number)."""
    text: str
    """Never blank; line endings as they were found."""
    split: Split | None = None
    """The side it belongs to, where its source publishes one; None leaves it to the hash."""


@runtime_checkable
class Source(Protocol):
    """Where documents come from."""

    @property
    def validation_share(self) -> float:
        """The share of documents that is held out."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether `stamp` alone names the content for good, so that no survey has to read it."""
        ...

    def stamp(self) -> str:
        """Name the present content without reading it (sizes and times, or a revision)."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yield every document that is not blank, in an order that never changes."""
        ...
