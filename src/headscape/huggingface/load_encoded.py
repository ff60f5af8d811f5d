"""Load a model that was saved with one of our encodings.

`save_pretrained` writes the encoding's tensors among the others and what `set_encoding` was given
into config.json. A model of transformers' own class has no place for them until `set_encoding` has
run, so `load` runs it between building the model and filling in the weights.
"""

from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.huggingface.attention_function import register
from headscape.huggingface.own_encoding import ENCODING
from headscape.huggingface.replace_position import set_encoding


def load(folder: Path | str, **options: Any) -> Any:
    """Return the model in a folder, as the class it was saved from.

    `options` go to from_pretrained.
    """
    import transformers

    register()
    config = transformers.AutoConfig.from_pretrained(folder)
    records = getattr(config, ENCODING, None)
    if not records:
        raise InputError(
            f"{folder} was not saved by a model with one of our encodings: load it with "
            f"from_pretrained."
        )
    kind: Any = getattr(transformers, config.architectures[0])

    def build(self: Any, config: Any, *args: Any, **more: Any) -> None:
        kind.__init__(self, config, *args, **more)
        for record in records:
            fields = {key: value for key, value in record.items() if key != "fields"}
            set_encoding(self, **fields, **record["fields"])

    encoded: Any = type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})
    model = encoded.from_pretrained(folder, config=config, **options)
    model.__class__ = kind
    return model
