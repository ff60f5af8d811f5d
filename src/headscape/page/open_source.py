"""What can be viewed: a capture's file, a pack in memory, a run's folder or a model."""

from pathlib import Path
from typing import TYPE_CHECKING

from headscape.arrays.pack import Pack, open_pack
from headscape.errors import InputError
from headscape.page.viewer_answers import Run

if TYPE_CHECKING:
    from headscape.protocol import Model


def open_source(source: object) -> tuple[Pack, Run | None]:
    """A pack to show, and what runs its model on a new text, where there is one."""
    if isinstance(source, Pack):
        return source, None
    if isinstance(source, str | Path) and Path(source).is_file():
        return open_pack(Path(source)), None
    from headscape.protocol import Model

    if isinstance(source, Model):
        return _captured(source)
    if isinstance(source, str | Path):
        from headscape.models.load import load

        return _captured(load(source))
    raise InputError(f"cannot view a {type(source).__name__}: give a capture, a run or a model.")


def _captured(model: "Model") -> tuple[Pack, Run | None]:
    """A model's capture of its validation text, and what captures any other text."""
    from headscape.capture.pack_of import pack_of
    from headscape.capture.sequences import choose_tokens

    chosen = choose_tokens(model)
    first = pack_of(model, chosen.tokens, source=chosen.source)
    if model.tokenizer is None:
        return first, None

    def run(text: str) -> Pack:
        typed = choose_tokens(model, text, name="typed text")
        return pack_of(model, typed.tokens, source=typed.source)

    return first, run
