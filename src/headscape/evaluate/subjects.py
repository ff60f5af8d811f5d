"""What is evaluated: a run, a run with its RoPE stretched, a Hugging Face model; and on what.

The text is the held-out side of a corpus: for a run, of the one it was trained on unless another
is named. Documents follow one another, end-of-text between them, as one stream of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headscape.encodings import title
from headscape.errors import InputError
from headscape.evaluate import huggingface
from headscape.evaluate.extension import Extension, extended
from headscape.evaluate.perplexity import Method, Text
from headscape.evaluate.scoring import GPT2Scorer, Scorer
from headscape.evaluate.units import units
from headscape.gpt2 import GPT2
from headscape.text.corpus.corpus import open_corpus
from headscape.text.tokens.shards import open_shards
from headscape.train.run import Run

HUGGING_FACE = "hf:"


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model to evaluate and the text to do it on."""

    method: Method
    text: Text
    scorer: Callable[[int], Scorer]
    """The model for a test length; the same for every length, unless it is stretched to fit."""

    @classmethod
    def of(
        cls,
        model: GPT2,
        text: Text,
        *,
        seed: int | None = None,
        recipe: str | None = None,
        extension: Extension | None = None,
    ) -> "Subject":
        """One of our models, stretched by `extension` if there is one."""
        config = model.config
        stretched = "" if extension is None else f", {extension.title}"
        method = Method(
            name=f"{title(config.encoding)}{stretched}",
            train_length=config.train_length,
            seed=seed,
            recipe=recipe,
        )
        if extension is None:
            plain = GPT2Scorer(model)
            return cls(method=method, text=text, scorer=lambda _: plain)
        # Asked once for its complaint, before anything is computed.
        extended(model, extension, config.train_length)
        return cls(
            method=method,
            text=text,
            scorer=lambda length: GPT2Scorer(extended(model, extension, length)),
        )


def open_subjects(
    source: str,
    *,
    cache: Path,
    corpus: str | None = None,
    extensions: Sequence[Extension] = (),
) -> list[Subject]:
    """The subjects of a run's folder, or of `hf:FOLDER`; one more for every extension."""
    if source.startswith(HUGGING_FACE):
        if corpus is None:
            raise InputError(f"{source} has no corpus of its own: say which text with --corpus.")
        if extensions:
            raise InputError(f"{source}: extensions are for runs of our own, leave them out.")
        return [open_huggingface(Path(source.removeprefix(HUGGING_FACE)), corpus, cache)]
    run = Run.open(source)
    spec = run.config.corpus if corpus is None else corpus
    shards = open_shards(open_corpus(spec, cache), run.tokenizer, cache)
    text = Text(tokens=shards.validation.tokens, corpus=spec, units=units(run.tokenizer))
    return [
        Subject.of(run.model, text, seed=run.config.seed, recipe=run.recipe, extension=extension)
        for extension in (None, *extensions)
    ]


def open_huggingface(folder: Path, corpus: str, cache: Path) -> Subject:
    """A Hugging Face model on the held-out side of a corpus, by its own tokenizer."""
    scorer = huggingface.open_model(folder)
    tokenizer = huggingface.open_tokenizer(folder)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    documents = (item for item in open_corpus(corpus, cache) if item.split == "validation")
    parts = [np.append(tokenizer.encode(item.text), end).astype(np.int64) for item in documents]
    text = Text(tokens=np.concatenate(parts), corpus=corpus, units=tokenizer.units())
    return Subject(method=Method(name=folder.name), text=text, scorer=lambda _: scorer)
