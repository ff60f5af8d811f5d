"""`headscape adapt`: a trained model with a different position encoding.

Its options, such as --lr, are the fields of `Adaptation` (training/adapt.py).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headscape.cli.command import FIELDS, Fields, command
from headscape.cli.parsing import read_text
from headscape.errors import InputError
from headscape.io.terminal import say

if TYPE_CHECKING:
    import numpy as np

    from headscape.models.loaded import LoadedModel


def _fields() -> Fields:
    from dataclasses import fields

    from headscape.training.adapt import Adaptation

    defaults = {field.name: field.default for field in fields(Adaptation)}
    return Fields(
        classes=(Adaptation,),
        defaults=defaults,
        label="default",
        sections={"encoding": "Encoding and schedule"},
        flags={},
    )


@command(fields=_fields)
def adapt(
    context: typer.Context,
    model: str,
    *,
    out: Path,
    text: str | None = None,
    corpus: str | None = None,
) -> None:
    """Give a trained model a different encoding by self-distillation.

    The new model starts from the old weights and learns from the old model itself, at the trained
    length or below: first each layer's attention output, then the logits. The folder that it writes
    opens like any other model: `headscape evaluate`, `diagnose`, `export`; that of a published
    model opens as hf:FOLDER.

    A checkpoint beside the folder is written once a minute and on Ctrl-C, and the same command
    continues from it.

    Examples:
        headscape adapt runs/cable --encoding fox --steps 50 --out runs/fox

    Args:
        context: The command line as it was parsed.
        model: A run, a folder of weights, or a published model of Llama, GPT-2 or GPT-NeoX type:
            hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        out: Folder to write; it must be new or empty.
        text: Learn from a text file; - is standard input.
        corpus: Learn from the training side of a corpus: stdlib, a file or a folder. [default: the
            corpus of a run]
    """
    import headscape as hs
    from headscape.io.files import empty_target, new_folder
    from headscape.io.terminal import SlowBar
    from headscape.models.gpt2_model import GPT2Model
    from headscape.models.transformers.published_model import PublishedModel
    from headscape.training.adapt import Adaptation
    from headscape.training.adapt import adapt as adapt_gpt2

    target = empty_target(out)
    old = hs.load(model)
    if not isinstance(old, GPT2Model | PublishedModel):
        raise InputError(f"{model} cannot be adapted: give a model with its own positions.")
    chosen = context.meta[FIELDS].items()
    options = Adaptation(**{name: value for name, value in chosen if value is not None})
    tokens = _tokens(model, old, text, corpus)
    checkpoint = target.with_name(f"{target.name}.checkpoint.safetensors")
    last: dict[str, float] = {}
    with SlowBar("adapting", options.steps) as bar:
        shown = 0

        def progress(done: int, part: str, loss: float) -> None:
            nonlocal shown
            last[part] = loss
            bar.advance(done - shown)
            shown = done

        try:
            if isinstance(old, GPT2Model):
                new = adapt_gpt2(old.gpt2, tokens, options, progress, checkpoint)
                with new_folder(target) as part:
                    GPT2Model(new, tokenizer=old.tokenizer).save(part)
            else:
                from headscape.huggingface.inject.adapt_published import (
                    adapt_published,
                    save_adapted,
                )

                save_adapted(
                    adapt_published(old, tokens, options, progress, checkpoint), old, target
                )
        except KeyboardInterrupt:
            if checkpoint.exists():
                say("continue with the same command", err=True)
            raise typer.Exit(130) from None
    checkpoint.unlink(missing_ok=True)
    for name, loss in last.items():
        say(f"{name}: last loss {loss:.4f}", err=True)
    say(out)


def _tokens(
    name: str, model: "LoadedModel", text: str | None, corpus: str | None
) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Return what a model learns from."""
    from headscape.data.dataset import open_dataset

    if text is not None and corpus is not None:
        raise InputError(f"give --text {text} or --corpus {corpus}, not both.")
    if text is None and corpus is None and model.dataset is not None:
        return model.dataset.train
    if text is None and corpus is None:
        raise InputError(f"{name} has no text of its own: give --text or --corpus, such as stdlib.")
    if model.tokenizer is None:
        raise InputError(f"{name} has no tokenizer, so it cannot read a text.")
    if corpus is not None:
        return open_dataset(corpus, model.tokenizer).train
    return model.tokenizer.encode(read_text(text) or "")
