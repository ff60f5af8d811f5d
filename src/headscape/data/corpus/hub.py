"""Datasets of the Hugging Face hub, streamed through the optional package `datasets`.

A spec is hf:DATASET[:CONFIG][@REVISION], or the name of a shortcut. The rows of the split "train"
are the documents, from their field "text". Without a revision the newest is looked up. The commit
is the stamp, so equal fingerprints mean equal text, and shards made from a spec with a full commit
hash are found again without a network.

The shortcuts have the settings of the CABLE paper (arXiv 2503.08067): FineWeb-Edu's sample-10BT
with 0.1 of 9.9 + 0.1 billion tokens held out, and raw WikiText-103 with its own validation split.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headscape.data.corpus.reading import SPLITS, Document
from headscape.errors import InputError

COMMIT = re.compile(r"[0-9a-f]{40}")
ARTICLE = re.compile(r" = [^=].* = \n?")


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A dataset on the hub."""

    dataset: str
    """Owner and name on the hub."""
    config: str | None = None
    """The dataset's configuration; None if it has only one."""
    revision: str | None = None
    """A commit, branch or tag; None for the newest."""
    validation_share: float = 0.05
    """Fraction of documents held out for validation."""
    own_validation: bool = False
    """Whether to use the dataset's own split "validation" instead of the hash of names."""
    articles: bool = False
    """Whether rows are lines, and a WikiText heading starts a document."""
    pinned: bool = True
    """True: a commit identifies the content permanently."""

    def stamp(self) -> str:
        """Return the dataset, its commit and how its rows become documents."""
        pinned = self.revision is not None and COMMIT.fullmatch(self.revision)
        commit = self.revision if pinned else self._builder.hash
        rule = "articles" if self.articles else "rows"
        held_out = "own" if self.own_validation else self.validation_share
        return f"hf:{self.dataset}:{self.config}@{commit} {rule} {held_out}"

    def documents(self) -> Iterator[Document]:
        """Yield the documents of the training split, then of the validation split."""
        for split in SPLITS if self.own_validation else SPLITS[:1]:
            texts = self._texts(split)
            for number, text in enumerate(_articles(texts) if self.articles else texts):
                if text.strip():
                    side = split if self.own_validation else None
                    yield Document(name=f"{split}/{number}", text=text, split=side)

    def _texts(self, split: str) -> Iterator[str]:
        try:
            for row in self._builder.as_streaming_dataset(split=split):
                text = row.get("text")
                if not isinstance(text, str):
                    raise InputError(f'the dataset {self.dataset} has no string field "text".')
                yield text
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error

    @cached_property
    def _builder(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise InputError(
                f"the corpus hf:{self.dataset} needs datasets: pip install 'headscape[datasets]'."
            ) from error
        try:
            return datasets.load_dataset_builder(self.dataset, self.config, revision=self.revision)
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> InputError:
        reason = " ".join(str(error).split())
        return InputError(f"cannot stream {self.dataset} from Hugging Face: {reason}.")


SHORTCUTS = {
    "fineweb-edu": Streamed(
        dataset="HuggingFaceFW/fineweb-edu", config="sample-10BT", validation_share=0.01
    ),
    "wikitext-103": Streamed(
        dataset="Salesforce/wikitext",
        config="wikitext-103-raw-v1",
        own_validation=True,
        articles=True,
    ),
}


def streamed(spec: str) -> Streamed:
    """Parse `DATASET[:CONFIG][@REVISION]` or `SHORTCUT[@REVISION]`."""
    name, _, revision = spec.partition("@")
    dataset, _, config = name.partition(":")
    if not dataset:
        raise InputError(f"hf:{spec} names no dataset: write hf:DATASET[:CONFIG][@REVISION].")
    if name in SHORTCUTS:
        return replace(SHORTCUTS[name], revision=revision or None)
    return Streamed(dataset=dataset, config=config or None, revision=revision or None)


def _articles(lines: Iterable[str]) -> Iterator[str]:
    gathered: list[str] = []
    for line in lines:
        if ARTICLE.fullmatch(line) and gathered:
            yield "".join(gathered)
            gathered = []
        gathered.append(line)
    yield "".join(gathered)
