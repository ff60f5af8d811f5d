"""The options of every command that opens a published model, and how they are used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from headscape.cli.command import FIELDS, Fields
from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.models.loaded import LoadedModel

HUGGING_FACE = "hf:"


def model_options() -> Fields:
    """Return the options of `hs.load` for published models."""
    from headscape.models.transformers.model_folder import Opening

    return Fields(
        classes=(Opening,),
        defaults=dict.fromkeys(("revision", "device", "dtype", "device_map", "offload")),
        label="default",
        sections={"revision": "Published models (hf:)"},
        flags={},
    )


def open_models(
    context: typer.Context, sources: Sequence[str], **more: Any
) -> "list[LoadedModel | str]":
    """Return the published models among `sources` opened with the options, the others as given."""
    options = {name: value for name, value in context.meta[FIELDS].items() if value is not None}
    for name in options:
        if not any(source.startswith(HUGGING_FACE) for source in sources):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is for published models (hf:), got {', '.join(sources)}.")
    import headscape as hs

    return [
        hs.load(source, **more, **options) if source.startswith(HUGGING_FACE) else source
        for source in sources
    ]
